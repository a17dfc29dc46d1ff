"""ToolOrchestra: an orchestrator that learns which tool and which expert to call, at what price."""
