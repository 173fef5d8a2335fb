package patch

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	routes "fairlead.dev/services/xds-server/internal/translate/route"
)

// patchedVirtualHosts is the translator of virtual hosts, patched. A virtual host that EnvoyFilters add to a route
// configuration with VHDS is a resource too, so that a domain which moves to another virtual host does so in one
// response.
type patchedVirtualHosts struct{ patched }

// HostNames adds the virtual hosts that EnvoyFilters add to the route configurations in which the host has a virtual
// host.
func (p patchedVirtualHosts) HostNames(r *input.Reader, host string) ([]string, error) {
	listed, err := p.Translator.HostNames(r, host)
	if err != nil || len(listed) == 0 || len(r.EnvoyFilters(p.context())) == 0 {
		return listed, err
	}
	out := slices.Clone(listed)
	for _, name := range listed {
		routeConfig, _, _ := resourcename.ParseOutboundVirtualHost(name)
		for _, u := range p.added(r, routeConfig) {
			out = append(out, resourcename.OutboundVirtualHost(routeConfig, u.Value.(*route.VirtualHost).GetName()))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (p patchedVirtualHosts) context() mesh.PatchContext { return p.contexts[mesh.Outbound] }

// added lists the patches for the class that add a virtual host to a route configuration.
func (p patchedVirtualHosts) added(r *input.Reader, routeConfig string) []*use {
	t := newRoutes(site{r, routeConfig, p.Translator}, nil).(*routeConfigs)
	var found []*use
	for _, f := range r.EnvoyFilters(p.context()) {
		for _, patch := range f.Patches {
			if !addsHost(patch) || !isOn(mesh.Outbound, patch) || !t.is(patch) || !isHostName(patch.Value.(*route.VirtualHost).GetName()) {
				continue
			}
			if r.Selected(f) && r.Meets(patch.Proxy) {
				found = append(found, &use{Patch: patch, filter: f})
			}
		}
	}
	return found
}

// isHostName reports whether a virtual host's name can be part of a resource name.
func isHostName(name string) bool { return name != "" && !strings.Contains(name, "/") }

// Build builds a virtual host and patches it, or builds one that an EnvoyFilter adds.
func (p patchedVirtualHosts) Build(r *input.Reader, name string) (proto.Message, error) {
	m, err := p.patched.Build(r, name)
	routeConfig, own, ok := resourcename.ParseOutboundVirtualHost(name)
	if m != nil || err != nil || !ok || !r.Class().VirtualHosts || r.Class().OnDemand || r.Class().Type != class.Sidecar {
		return m, err
	}
	if m, err = p.Translator.Build(r, name); m != nil || err != nil {
		return nil, err // it was removed
	}
	var out proto.Message
	var refused []error
	seen, domains := map[string]bool{}, map[string]bool{"*": true}
	for _, u := range p.added(r, routeConfig) {
		added := u.Value.(*route.VirtualHost)
		err := validateAdded(r, routeConfig, u, seen, domains)
		if err == nil {
			seen[added.GetName()] = true
			for _, d := range added.GetDomains() {
				domains[strings.ToLower(d)] = true
			}
		}
		switch {
		case added.GetName() != own:
		case err != nil:
			refused = append(refused, fmt.Errorf("EnvoyFilter %s: %w", u.filter.Name(), err))
		default:
			clone := proto.CloneOf(added)
			clone.Name = name
			out = clone
			r.Patched(u.filter)
		}
	}
	return out, incomplete(refused)
}

// validateAdded returns an error for an added virtual host that Envoy would reject because of the others. seen are the
// names of virtual hosts added before it, domains their domains.
func validateAdded(r *input.Reader, routeConfig string, u *use, seen, domains map[string]bool) error {
	added := u.Value.(*route.VirtualHost)
	if seen[added.GetName()] {
		return u.errorf("another EnvoyFilter adds %q, give it a name of its own", added.GetName())
	}
	if err := validateNamed(added.GetName(), added.GetName(), added); err != nil {
		return u.errorf("%w", err)
	}
	own := map[string]bool{}
	for _, d := range added.GetDomains() {
		d = strings.ToLower(d)
		if domains[d] || own[d] {
			return u.errorf("domain %q is that of another virtual host", d)
		}
		own[d] = true
		if hostname, taken := routes.Owner(r, routeConfig, d); taken {
			return u.errorf("domain %q is that of host %s, take it out or patch that virtual host", d, hostname)
		}
	}
	if len(own) == 0 {
		return u.errorf("%w", errors.New("no domains"))
	}
	return nil
}
