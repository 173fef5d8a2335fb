package patch

import (
	"google.golang.org/protobuf/proto"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"fairlead.dev/pkg/envoyapi"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/bootstrap"
)

// bootstraps collects what an agent merges into the configuration that its proxy starts with.
type bootstraps struct{}

func newBootstraps(site, proto.Message) resource { return bootstraps{} }

// sideOfBootstrap is a gateway's, or for the one of a sidecar, which has both of its sides, the inbound one: see mesh.contexts.
func sideOfBootstrap(s site, _ proto.Message) string {
	if s.r.Class().Type == class.Router {
		return mesh.Gateways
	}
	return mesh.Inbound
}

func (bootstraps) concerns(*mesh.Patch) bool { return true }

func (bootstraps) patch(m proto.Message, patches []*use) (proto.Message, error) {
	out := m.(*bootstrapv3.Bootstrap)
	for _, u := range patches {
		if !isMerge(u.Operation) {
			continue
		}
		if err := merge(u, out); err != nil {
			return nil, err
		}
	}
	return bootstrap.Resource{Bootstrap: out}, nil
}

func (bootstraps) validate(m proto.Message) error { return envoyapi.Validate(m) }
