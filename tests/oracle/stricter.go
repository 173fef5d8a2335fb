package oracle

// Stricter is what Fairlead refuses and Istio accepts.
var Stricter = []Difference{
	stricter("AuthorizationPolicy", "the kind", `AuthorizationPolicy is not enforced`,
		"A policy that is stored and not enforced would only look like protection.", "authorizationpolicy: allow"),
}
