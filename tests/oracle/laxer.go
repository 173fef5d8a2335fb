package oracle

// Laxer is what Istio refuses and Fairlead accepts.
var Laxer = []Difference{
	laxer("DestinationRule", "`distribute` to localities that overlap", `^locality \S+ overlap with previous specified ones$`,
		"istioctl finds the overlap only if it happens to read the wider locality first: the same object is refused one time and accepted another.", ""),
	laxer("Telemetry", "`accessLogging.filter.expression` that is no CEL", `^must be a valid CEL expression`,
		"Telemetry has no effect, as a warning says, and nothing reads the expression.", "telemetry: logging-filter-bad"),
}
