package gatewayapi

import (
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/features"
)

// supportedFeatures are those of the specification's release that go.mod names: all of them. Sorted.
var supportedFeatures = func() []gatewayv1.SupportedFeature {
	var out []gatewayv1.SupportedFeature
	for name := range features.SetsToNamesSet(features.AllFeatures) {
		out = append(out, gatewayv1.SupportedFeature{Name: gatewayv1.FeatureName(name)})
	}
	slices.SortFunc(out, func(a, b gatewayv1.SupportedFeature) int { return compareText(string(a.Name), string(b.Name)) })
	return out
}()
