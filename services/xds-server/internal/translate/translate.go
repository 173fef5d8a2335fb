// Package translate lists the translators, one for each xDS resource type. A translator builds one resource from what
// it reads of the mesh through input.Reader; it has no clock, does no I/O and starts no goroutine. Package plan calls
// the translators, for one class of proxies at a time.
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
	"fairlead.dev/services/xds-server/internal/translate/signedbundle"
	"fairlead.dev/services/xds-server/internal/translate/trustbundle"
)

// All returns the translators in the order in which a proxy receives their resources. patch.WithEnvoyFilters applies
// EnvoyFilters to what they build; proxyless.WithGRPCClients builds the resources of proxyless gRPC clients and servers
// instead.
func All() []plan.Translator {
	all := []plan.Translator{
		cluster.Translator{}, endpoint.Translator{}, listener.Translator{}, route.Translator{}, route.VirtualHosts{},
		extension.Translator{}, nametable.Translator{}, trustbundle.Translator{}, bootstrap.Translator{},
	}
	for i := range all {
		all[i] = proxyless.WithGRPCClients(patch.WithEnvoyFilters(all[i]))
	}
	// Proxyless gRPC clients do not request secrets, and EnvoyFilters cannot patch them or the bundle.
	return append(all, secret.Translator{}, signedbundle.Translator{})
}
