"""The study: which learners, teams and settings train better, on equal budgets, over several seeds, with a report."""
