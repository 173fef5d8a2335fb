package envoyadmin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/services/installer/internal/table"
)

// namePaths say where an element of a section's lists has its resource's name.
var namePaths = map[Section][][]string{
	Clusters:  {{"cluster", "name"}},
	Listeners: {{"name"}, {"listener", "name"}},
	Endpoints: {{"endpoint_config", "cluster_name"}},
	Secrets:   {{"name"}},
}

// Named returns the dump with only those resources of a section whose name contains the text. A route configuration of another name stays with
// those of its virtual hosts whose name or domain does.
func (d *Dump) Named(s Section, text string) (*Dump, error) {
	from := s
	if s == VirtualHosts {
		from = Routes
	}
	raw, ok := d.sections[adminPrefix+string(from)]
	if !ok || text == "" {
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
		tree[key] = slices.DeleteFunc(list, func(element any) bool {
			if from == Routes {
				return !keepRoutes(element, text, s == Routes)
			}
			return !slices.ContainsFunc(namePaths[s], func(path []string) bool { return strings.Contains(at(element, path...), text) })
		})
	}
	kept, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("config dump, %s: %w", from, err)
	}
	return &Dump{sections: map[string]json.RawMessage{adminPrefix + string(from): kept}}, nil
}

// keepRoutes takes the virtual hosts out of a route configuration that the text is not about, and reports whether something is left. whole
// keeps all of a route configuration whose own name contains the text.
func keepRoutes(element any, text string, whole bool) bool {
	if whole && strings.Contains(at(element, "route_config", "name"), text) {
		return true
	}
	fields, _ := element.(map[string]any)
	config, _ := fields["route_config"].(map[string]any)
	hosts, _ := config["virtual_hosts"].([]any)
	hosts = slices.DeleteFunc(hosts, func(host any) bool {
		if strings.Contains(at(host, "name"), text) {
			return false
		}
		fields, _ := host.(map[string]any)
		domains, _ := fields["domains"].([]any)
		return !slices.ContainsFunc(domains, func(domain any) bool {
			name, _ := domain.(string)
			return strings.Contains(name, text)
		})
	})
	if config != nil {
		config["virtual_hosts"] = hosts
	}
	return len(hosts) > 0
}

// at is the text at a path; "" if there is none.
func at(tree any, path ...string) string {
	for _, key := range path {
		fields, _ := tree.(map[string]any)
		tree = fields[key]
	}
	text, _ := tree.(string)
	return text
}

// Named keeps the clusters whose name contains the text.
func (c *ClusterStatuses) Named(text string) *ClusterStatuses {
	return &ClusterStatuses{slices.DeleteFunc(slices.Clone(c.Clusters), func(s ClusterStatus) bool { return !strings.Contains(s.Name, text) })}
}

// VirtualHostsTable shows the virtual hosts, wherever the proxy has them from.
func (d *Dump) VirtualHostsTable() (*table.Table, error) {
	all, err := d.routeConfigs()
	if err != nil {
		return nil, err
	}
	t := &table.Table{Header: []string{"ROUTE CONFIGURATION", "VHOST NAME", "DOMAINS", "ROUTES", "VIRTUAL SERVICES"}}
	for _, rc := range all {
		for _, v := range rc.VirtualHosts {
			var objects []string
			for _, r := range v.Routes {
				if o := objectName(r.Metadata.istioConfig()); o != "" && !slices.Contains(objects, o) {
					objects = append(objects, o)
				}
			}
			t.Add(rc.Name, v.Name, domains(v.Domains), fmt.Sprint(len(v.Routes)), strings.Join(objects, ", "))
		}
	}
	return t, nil
}

// virtualHostsJSON lists the virtual hosts as Envoy has them, each with the name of its route configuration.
func (d *Dump) virtualHostsJSON() ([]byte, error) {
	var dump struct {
		Static  []json.RawMessage `json:"static_route_configs"`
		Dynamic []json.RawMessage `json:"dynamic_route_configs"`
	}
	if err := d.section(string(Routes), &dump); err != nil {
		return nil, err
	}
	type host struct {
		Config string          `json:"route_config_name"`
		Host   json.RawMessage `json:"virtual_host"`
	}
	list := []host{}
	for _, raw := range append(dump.Static, dump.Dynamic...) {
		var rc struct {
			Config struct {
				Name  string            `json:"name"`
				Hosts []json.RawMessage `json:"virtual_hosts"`
			} `json:"route_config"`
		}
		if err := json.Unmarshal(raw, &rc); err != nil {
			return nil, fmt.Errorf("config dump, %s: %w", Routes, err)
		}
		for _, h := range rc.Config.Hosts {
			list = append(list, host{rc.Config.Name, h})
		}
	}
	return json.MarshalIndent(list, "", "  ")
}
