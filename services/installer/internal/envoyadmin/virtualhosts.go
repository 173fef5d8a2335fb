package envoyadmin

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/services/installer/internal/table"
)

// VirtualHostsTable has a row for each virtual host, of RDS or VHDS.
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
				if o := r.object(); o != "" && !slices.Contains(objects, o) {
					objects = append(objects, o)
				}
			}
			t.Add(rc.Name, v.Name, domains(v.Domains), fmt.Sprint(len(v.Routes)), strings.Join(objects, ", "))
		}
	}
	return t, nil
}

// virtualHostsJSON lists the virtual hosts without private keys, each with the name of its route configuration.
func (d *Dump) virtualHostsJSON() ([]byte, error) {
	var dump struct {
		Static  []json.RawMessage `json:"static_route_configs"`
		Dynamic []json.RawMessage `json:"dynamic_route_configs"`
	}
	text, err := d.JSON(Routes)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &dump); err != nil {
		return nil, fmt.Errorf("config dump, %s: %w", Routes, err)
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
