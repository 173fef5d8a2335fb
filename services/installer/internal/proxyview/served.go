package proxyview

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

// ServedTypes are the types that an xds-server shows at /debug/resources, in the spelling of its query.
var ServedTypes = map[envoyadmin.Section]string{
	envoyadmin.Clusters: "clusters", envoyadmin.Listeners: "listeners", envoyadmin.Routes: "routes", envoyadmin.Endpoints: "endpoints",
	envoyadmin.VirtualHosts: "virtualhosts", envoyadmin.Extensions: "extensions", NameTables: "nametables",
}

// servedResource is a resource in the answer of /debug/resources.
type servedResource struct {
	Name     string          `json:"name"`
	Version  string          `json:"version"`
	Resource json.RawMessage `json:"resource"`
}

// showServed prints what the xds-server has for a proxy: as the tables of an Envoy that holds the same, or as a JSON
// list of resources with their versions.
func (r Request) showServed(ctx context.Context, c *meshclient.Proxy) error {
	query := url.Values{"spelling": {"proto"}}
	types := []string{ServedTypes[r.Section]}
	if r.Output == "" && (r.Section == envoyadmin.Routes || r.Section == envoyadmin.VirtualHosts) {
		types = []string{ServedTypes[envoyadmin.Routes], ServedTypes[envoyadmin.VirtualHosts]}
	}
	byType, seen := map[string][]servedResource{}, map[[2]string]bool{}
	for _, kind := range types {
		query.Set("type", kind)
		var answer map[string][]servedResource
		err := c.AskUntil(ctx, "/debug/resources", query, &answer, func() bool {
			for url, list := range answer {
				for _, found := range list {
					if id := [2]string{url, found.Name}; !seen[id] {
						seen[id], byType[url] = true, append(byType[url], found)
					}
				}
			}
			answer = nil
			return false
		})
		if err != nil {
			return err
		}
	}
	if r.Output != "" {
		list, err := wantedResources(byType, r.Filter)
		if err != nil {
			return err
		}
		return structured.Print(r.Out, r.Output, list)
	}
	if r.Section == NameTables {
		return showNameTables(byType, r.Filter.Name, r.Out)
	}
	held := map[string][]envoyadmin.Served{}
	for url, list := range byType {
		for _, found := range list {
			held[url] = append(held[url], envoyadmin.Served(found))
		}
	}
	dump, err := envoyadmin.ServedDump(held)
	if err != nil {
		return err
	}
	return r.showDump(dump, c.Name(), nil)
}

// wantedResources lists the resources that a filter matches, sorted by name, whole but for private keys.
func wantedResources(byType map[string][]servedResource, filter envoyadmin.Filter) ([]servedResource, error) {
	list := []servedResource{}
	for url, found := range byType {
		for _, r := range found {
			keep, err := envoyadmin.Wanted(url, envoyadmin.Served(r), filter)
			if err != nil {
				return nil, err
			}
			if !keep {
				continue
			}
			if r.Resource, err = envoyadmin.Redacted(r.Resource); err != nil {
				return nil, fmt.Errorf("%s: %w", r.Name, err)
			}
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b servedResource) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// showNameTables prints the names of a name table with their addresses.
func showNameTables(byType map[string][]servedResource, name string, out io.Writer) error {
	tab := &table.Table{Header: []string{"NAME", "ADDRESSES"}}
	for _, list := range byType {
		for _, r := range list {
			var names struct {
				Table map[string]struct {
					Addresses []string `json:"ips"`
				} `json:"table"`
			}
			if err := json.Unmarshal(r.Resource, &names); err != nil {
				return fmt.Errorf("name table %s: %w", r.Name, err)
			}
			for host, of := range names.Table {
				if strings.Contains(host, name) {
					tab.Add(host, strings.Join(of.Addresses, ", "))
				}
			}
		}
	}
	slices.SortFunc(tab.Rows, slices.Compare)
	return tab.Write(out)
}
