package gatewayapi

import "regexp"

// difference is a row of docs/reference/gateway-api-differences.md: what is not Istio's on purpose.
type difference struct {
	// what is different, what Istio and Fairlead do and the reason, as the page says them.
	what, istio, here, reason string
	// lines are the differences that the row explains, as differencesFound.add writes them.
	lines *regexp.Regexp
}

var differences = []difference{}
