"""Several roles on one problem: solvers, rewriters who read all solutions, and a selector who names the best one."""
