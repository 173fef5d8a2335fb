package oracle

// Laxer is what Istio refuses and Fairlead accepts.
var Laxer = []Difference{
	laxer("DestinationRule", "`distribute` to localities that overlap", `^locality \S+ overlap with previous specified ones$`,
		"istioctl finds the overlap only if it happens to read the wider locality first: the same object is refused one time and accepted "+
			"another.", ""),
	laxer("Sidecar", "egress listeners of one port on several addresses", `^sidecar: ports on IP bound listeners must be unique$`,
		"The addresses tell the listeners apart. Two of one address are refused.", "sidecar: egress-port-twice-other-bind"),
	laxer("Sidecar", "`ingress.tls.subjectAltNames`", `^sidecar: subjectAltNames is not supported in ingress tls$`,
		"The sidecar verifies the names of its clients' certificates as a gateway does.", "sidecar: ingress-tls-sans"),
	laxer("Sidecar", "`ingress.tls.tlsCertificates`", `^sidecar: tls_certificates is not currently supported$`,
		"The sidecar serves several certificates as a gateway does.", "sidecar: ingress-tls-list"),
	laxer("Telemetry", "`accessLogging.filter.expression` that is no CEL", `^must be a valid CEL expression`,
		"Telemetry has no effect, as a warning says, and nothing reads the expression.", "telemetry: logging-filter-bad"),
}
