"""HTTP: routes over the broker's answers, served by Hypercorn inside the nursery tree. Knows no queue rule."""
