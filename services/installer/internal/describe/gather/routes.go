package gather

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"fairlead.dev/services/installer/internal/describe"
	"fairlead.dev/services/installer/internal/kube"
)

// maxRoutes bounds the objects of one kind of the Gateway API that are looked at.
const maxRoutes = 20 * kube.Page

// gatewayAPIKinds are read of a cluster, each in the first of the versions that is served.
var gatewayAPIKinds = []struct {
	kind, plural string
	versions     []string
}{
	{describe.APIGateway, "gateways", []string{"v1", "v1beta1"}}, {"HTTPRoute", "httproutes", []string{"v1", "v1beta1"}},
	{"GRPCRoute", "grpcroutes", []string{"v1", "v1alpha2"}},
	{"TLSRoute", "tlsroutes", []string{"v1", "v1alpha3", "v1alpha2"}}, {"TCPRoute", "tcproutes", []string{"v1", "v1alpha2"}},
}

// readRoutes reads the routes of the Gateway API and their Gateways from the API server of a cluster: config-watcher
// does not have them. A kind that nobody has installed has no objects; one that may not be read is named.
func (g *gatherer) readRoutes(ctx context.Context) error {
	api, err := g.cfg.Mesh.Kube(ctx)
	if err != nil || api == nil {
		return err
	}
	for _, k := range gatewayAPIKinds {
		for _, version := range k.versions {
			list, err := listGatewayAPI(ctx, api, version, k.plural)
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				g.unknown(k.plural+" of "+describe.GatewayAPI, kube.Explain(err))
				break
			}
			for _, text := range list {
				o, err := describe.Parse(text, "")
				if err != nil {
					return err
				}
				o.Kind = k.kind
				g.model.Objects = append(g.model.Objects, o)
			}
			break
		}
	}
	return nil
}

// listGatewayAPI lists all objects of a kind, page by page.
func listGatewayAPI(ctx context.Context, api kube.API, version, plural string) (all []json.RawMessage, err error) {
	for next := ""; ; {
		text, err := api.Discovery().RESTClient().Get().AbsPath("/apis", describe.GatewayAPI, version, plural).
			Param("limit", fmt.Sprint(kube.Page)).Param("continue", next).DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		var list struct {
			Metadata struct{ Continue string }
			Items    []json.RawMessage
		}
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, err
		}
		if all = append(all, list.Items...); len(all) > maxRoutes {
			return nil, fmt.Errorf("the cluster has more than %d", maxRoutes)
		}
		if next = list.Metadata.Continue; next == "" {
			return all, nil
		}
	}
}
