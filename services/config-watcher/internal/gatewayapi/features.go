package gatewayapi

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/features"
)

// ofMesh are the features of meshes, which an XMesh has and no GatewayClass.
var ofMesh = features.SetsToNamesSet(features.MeshCoreFeatures, features.MeshExtendedFeatures)

// gatewayFeatures are all of the specification's release that go.mod names but those of meshes.
var gatewayFeatures = sorted(features.SetsToNamesSet(features.AllFeatures).Difference(ofMesh))

// MeshFeatures are the features that the status of an XMesh claims, sorted: those of meshes, and those of routes
// without which the specification's tests leave out tests of meshes. It is not to be changed.
var MeshFeatures = sorted(ofMesh.Union(sets.New(
	features.SupportHTTPRoute, features.SupportGRPCRoute, features.SupportHTTPRouteParentRefPort,
	features.SupportHTTPRouteResponseHeaderModification, features.SupportHTTPRoute303RedirectStatusCode,
	features.SupportHTTPRoute307RedirectStatusCode, features.SupportHTTPRoute308RedirectStatusCode,
)))

func sorted(names sets.Set[features.FeatureName]) []gatewayv1.SupportedFeature {
	var out []gatewayv1.SupportedFeature
	for name := range names {
		out = append(out, gatewayv1.SupportedFeature{Name: gatewayv1.FeatureName(name)})
	}
	slices.SortFunc(out, func(a, b gatewayv1.SupportedFeature) int { return compareText(string(a.Name), string(b.Name)) })
	return out
}
