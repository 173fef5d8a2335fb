package patch

import (
	"google.golang.org/protobuf/proto"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"fairlead.dev/pkg/envoyapi"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/bootstrap"
)

// bootstraps collects the patches that an agent merges into its proxy's bootstrap.
type bootstraps struct{}

func newBootstraps(site, proto.Message) resource { return bootstraps{} }

// sideOfBootstrap returns the inbound side for sidecars. They have two sides, and mesh.contexts gives bootstrap patches
// for sidecars the inbound one.
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
