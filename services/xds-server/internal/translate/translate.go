// Package translate lists the translators of xDS types. Each is a pure function of what it reads of the mesh through input.Reader.
package translate

import (
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/bootstrap"
	"fairlead.dev/services/xds-server/internal/translate/cluster"
	"fairlead.dev/services/xds-server/internal/translate/endpoint"
	"fairlead.dev/services/xds-server/internal/translate/extension"
	"fairlead.dev/services/xds-server/internal/translate/listener"
	"fairlead.dev/services/xds-server/internal/translate/nametable"
	"fairlead.dev/services/xds-server/internal/translate/patch"
	"fairlead.dev/services/xds-server/internal/translate/proxyless"
	"fairlead.dev/services/xds-server/internal/translate/route"
	"fairlead.dev/services/xds-server/internal/translate/secret"
)

// All returns the translators in the order in which a proxy wants their resources: clusters, endpoints, listeners, routes, virtual
// hosts, and what its agent asks for beside it. Those of gRPC programs stand beside them.
func All() []plan.Translator {
	all := []plan.Translator{
		cluster.Translator{}, endpoint.Translator{}, listener.Translator{}, route.Translator{}, route.VirtualHosts{},
		extension.Translator{}, nametable.Translator{}, bootstrap.Translator{},
	}
	for i := range all {
		all[i] = proxyless.Beside(patch.Over(all[i]))
	}
	// No program asks for secrets, and no EnvoyFilter patches them.
	return append(all, secret.Translator{})
}
