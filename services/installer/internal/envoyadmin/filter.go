package envoyadmin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Filter chooses resources of a section. An empty field matches everything; a text matches if the value contains it.
type Filter struct {
	// Name matches a resource's name; of virtual hosts, their name or one of their domains.
	Name string
	// FQDN, Subset and Cluster match the parts of a cluster's name; Direction is inbound or outbound.
	FQDN, Subset, Direction, Cluster string
	// Port of a cluster, a listener, a virtual host or an endpoint.
	Port int
	// Address matches a listener's or an endpoint's address.
	Address string
	// Type is a cluster's discovery type, or what a listener serves: HTTP, TCP or HTTP+TCP.
	Type string
	// Status is an endpoint's health as the table shows it: HEALTHY, UNHEALTHY, ...
	Status string
}

// field is a field of a Filter.
type field struct {
	flag  string
	set   bool
	clear func()
}

// fields lists the fields, each with the flag that sets it.
func (f *Filter) fields() []field {
	text := func(flag string, value *string) field {
		return field{flag, *value != "", func() { *value = "" }}
	}
	return []field{
		text("name", &f.Name), text("fqdn", &f.FQDN), text("subset", &f.Subset), text("direction", &f.Direction),
		text("cluster", &f.Cluster), {"port", f.Port != 0, func() { f.Port = 0 }},
		text("address", &f.Address), text("type", &f.Type), text("status", &f.Status),
	}
}

// filters lists, by section, the fields that mean something for it.
var filters = map[Section][]string{
	Clusters:     {"name", "fqdn", "subset", "direction", "port", "type"},
	Listeners:    {"name", "address", "port", "type"},
	Routes:       {"name", "fqdn", "port"},
	VirtualHosts: {"name", "fqdn", "port"},
	Endpoints:    {"name", "fqdn", "subset", "direction", "cluster", "port", "address", "status"},
	Secrets:      {"name"},
	Extensions:   {"name"},
}

// Check returns an error that names the first field that is set and means nothing for the section.
func (f Filter) Check(s Section) error {
	for _, field := range f.fields() {
		if !field.set || slices.Contains(filters[s], field.flag) {
			continue
		}
		allowed := "none"
		if len(filters[s]) > 0 {
			allowed = "--" + strings.Join(filters[s], ", --")
		}
		return fmt.Errorf("--%s does not filter this section; its filters: %s", field.flag, allowed)
	}
	return nil
}

// forSection returns the filter without the fields that mean nothing for the section.
func (f Filter) forSection(s Section) Filter {
	for _, field := range f.fields() {
		if !slices.Contains(filters[s], field.flag) {
			field.clear()
		}
	}
	return f
}

// Only returns the dump with only those resources of a section that the filter matches. Of a route configuration that
// does not match by name, the matching virtual hosts stay.
func (d *Dump) Only(s Section, f Filter) (*Dump, error) {
	from := s
	if s == VirtualHosts {
		from = Routes
	}
	f = f.forSection(s)
	raw, ok := d.sections[adminPrefix+string(from)]
	if !ok || f == (Filter{}) {
		return d, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	tree := map[string]any{}
	if err := dec.Decode(&tree); err != nil {
		return nil, fmt.Errorf("config dump, %s: %w", from, err)
	}
	for key, value := range tree {
		list, ok := value.([]any)
		if !ok {
			continue
		}
		tree[key] = slices.DeleteFunc(list, func(element any) bool { return !f.keep(s, element) })
	}
	kept, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("config dump, %s: %w", from, err)
	}
	out := &Dump{sections: map[string]json.RawMessage{}}
	maps.Copy(out.sections, d.sections)
	out.sections[adminPrefix+string(from)] = kept
	return out, nil
}

// keep reports whether the filter matches an element of one of a section's lists. It removes from the element the
// virtual hosts or endpoints that do not match.
func (f Filter) keep(s Section, element any) bool {
	switch s {
	case Clusters:
		var c cluster
		return decode(at(element, "cluster"), &c) && f.cluster(c.Name) && (f.Type == "" || strings.EqualFold(c.kind(), f.Type)) &&
			strings.Contains(c.Name, f.Name)
	case Listeners:
		for _, state := range [][]string{{"listener"}, {"active_state", "listener"}, {"warming_state", "listener"}} {
			var l listener
			if tree := at(element, state...); tree != nil && decode(tree, &l) {
				return f.listener(l)
			}
		}
		name, _ := at(element, "name").(string)
		return f.Type == "" && f.Port == 0 && f.Address == "" && strings.Contains(name, f.Name)
	case Routes, VirtualHosts:
		return f.routes(element, s == Routes)
	case Endpoints:
		return f.endpoints(element)
	case Secrets:
		name, _ := at(element, "name").(string)
		return strings.Contains(name, f.Name)
	case Extensions:
		name, _ := at(element, "ecds_filter", "name").(string)
		return strings.Contains(name, f.Name)
	}
	return true
}

// cluster reports whether the fields about clusters match this cluster name.
func (f Filter) cluster(name string) bool {
	n := parseClusterName(name)
	return strings.Contains(n.host, f.FQDN) && strings.Contains(n.subset, f.Subset) && strings.Contains(name, f.Cluster) &&
		(f.Direction == "" || strings.EqualFold(n.direction, f.Direction)) && (f.Port == 0 || n.port == fmt.Sprint(f.Port))
}

func (f Filter) listener(l listener) bool {
	hosts := []string{l.Address.host()}
	for _, a := range l.Additional {
		hosts = append(hosts, a.Address.host())
	}
	return strings.Contains(l.Name, f.Name) && (f.Port == 0 || l.Address.port() == fmt.Sprint(f.Port)) &&
		(f.Type == "" || strings.EqualFold(l.kind(), f.Type)) &&
		slices.ContainsFunc(hosts, func(host string) bool { return strings.Contains(host, f.Address) })
}

// routes removes the virtual hosts that do not match from a route configuration, and reports whether anything is left.
// With whole, a route configuration whose own name matches keeps all of them.
func (f Filter) routes(element any, whole bool) bool {
	name, _ := at(element, "route_config", "name").(string)
	wholly := whole && f.Name != "" && strings.Contains(name, f.Name)
	config, _ := at(element, "route_config").(map[string]any)
	hosts, _ := config["virtual_hosts"].([]any)
	hosts = slices.DeleteFunc(hosts, func(host any) bool {
		var v virtualHost
		if !decode(host, &v) {
			return true
		}
		names := append([]string{v.Name}, v.Domains...)
		has := func(text string) bool {
			return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, text) })
		}
		port := f.Port == 0 || name == fmt.Sprint(f.Port) || strings.HasSuffix(v.Name, fmt.Sprintf(":%d", f.Port))
		return !port || !has(f.FQDN) || !wholly && !has(f.Name)
	})
	if config != nil {
		config["virtual_hosts"] = hosts
	}
	return len(hosts) > 0 || wholly && f.FQDN == "" && f.Port == 0
}

// endpoints removes the endpoints that do not match from an assignment, and reports whether any is left.
func (f Filter) endpoints(element any) bool {
	name, _ := at(element, "endpoint_config", "cluster_name").(string)
	if !strings.Contains(name, f.Name) || !f.endpointsCluster(name) {
		return false
	}
	if f.Port == 0 && f.Address == "" && f.Status == "" {
		return true
	}
	left := 0
	localities, _ := at(element, "endpoint_config", "endpoints").([]any)
	for _, l := range localities {
		locality, _ := l.(map[string]any)
		list, _ := locality["lb_endpoints"].([]any)
		list = slices.DeleteFunc(list, func(tree any) bool {
			var e lbEndpoint
			return !decode(tree, &e) || !f.endpoint(e.Endpoint.Address, e.status())
		})
		locality["lb_endpoints"] = list
		left += len(list)
	}
	return left > 0
}

// endpointsCluster is cluster for filters of endpoints: their Port is the endpoints', not the cluster's.
func (f Filter) endpointsCluster(name string) bool {
	f.Port = 0
	return f.cluster(name)
}

func (f Filter) endpoint(a address, status string) bool {
	return strings.Contains(a.host(), f.Address) && (f.Port == 0 || a.port() == fmt.Sprint(f.Port)) &&
		(f.Status == "" || strings.EqualFold(status, f.Status))
}

// Only returns the endpoints that the filter matches.
func (c *ClusterStatuses) Only(f Filter) *ClusterStatuses {
	f = f.forSection(Endpoints)
	out := &ClusterStatuses{}
	for _, s := range c.Clusters {
		if !strings.Contains(s.Name, f.Name) || !f.endpointsCluster(s.Name) {
			continue
		}
		kept := s
		kept.Hosts = nil
		for _, h := range s.Hosts {
			if f.endpoint(h.Address, h.Health.EDS) {
				kept.Hosts = append(kept.Hosts, h)
			}
		}
		out.Clusters = append(out.Clusters, kept)
	}
	return out
}

// at returns the value at a path of a JSON tree; nil if there is none.
func at(tree any, path ...string) any {
	for _, key := range path {
		fields, _ := tree.(map[string]any)
		tree = fields[key]
	}
	return tree
}

// decode decodes a part of a JSON tree into out, and reports whether it fits.
func decode(tree, out any) bool {
	text, err := json.Marshal(tree)
	return err == nil && json.Unmarshal(text, out) == nil
}
