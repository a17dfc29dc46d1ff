"""ReTool: reasons in words and in Python, whose output it reads as it goes on."""
