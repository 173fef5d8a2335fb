package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/table"
)

// servedTypes are the types that an xds-server shows at /debug/resources, in the spelling of its query.
var servedTypes = map[envoyadmin.Section]string{
	envoyadmin.Clusters: "clusters", envoyadmin.Listeners: "listeners", envoyadmin.Routes: "routes", envoyadmin.Endpoints: "endpoints",
	envoyadmin.VirtualHosts: "virtualhosts", envoyadmin.Extensions: "extensions", nameTables: "nametables",
}

// servedResource is a resource in the answer of /debug/resources.
type servedResource struct {
	Name     string          `json:"name"`
	Version  string          `json:"version"`
	Resource json.RawMessage `json:"resource"`
}

// servedConfig shows what the xds-server has for the named proxy.
func servedConfig(ctx context.Context, t *target, name string, sec envoyadmin.Section, f configFlags, out, diagnostics io.Writer) error {
	c, err := t.findProxy(ctx, name, f.namespace)
	if err != nil {
		return err
	}
	return c.showServed(ctx, sec, f, out, diagnostics)
}

// showServed prints what the xds-server has for the proxy: as the tables of an Envoy that holds the same, or as a JSON
// list of resources with their versions.
func (c *connectedProxy) showServed(ctx context.Context, sec envoyadmin.Section, f configFlags, out, diagnostics io.Writer) error {
	query := url.Values{"spelling": {"proto"}}
	types := []string{servedTypes[sec]}
	if f.out.value == "" && (sec == envoyadmin.Routes || sec == envoyadmin.VirtualHosts) {
		types = []string{servedTypes[envoyadmin.Routes], servedTypes[envoyadmin.VirtualHosts]}
	}
	byType, seen := map[string][]servedResource{}, map[[2]string]bool{}
	for _, kind := range types {
		query.Set("type", kind)
		var answer map[string][]servedResource
		err := c.askUntil(ctx, "/debug/resources", query, &answer, func() bool {
			for url, list := range answer {
				for _, r := range list {
					if id := [2]string{url, r.Name}; !seen[id] {
						seen[id], byType[url] = true, append(byType[url], r)
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
	if f.out.value != "" {
		list, err := wantedResources(byType, f.filter)
		if err != nil {
			return err
		}
		return printTree(out, f.out.value, list)
	}
	if sec == nameTables {
		return showNameTables(byType, f.filter.Name, out)
	}
	held := map[string][]envoyadmin.Served{}
	for url, list := range byType {
		for _, r := range list {
			held[url] = append(held[url], envoyadmin.Served(r))
		}
	}
	dump, err := envoyadmin.ServedDump(held)
	if err != nil {
		return err
	}
	return showDump(dump, proxyName(c.nodeID), sec, f, nil, out, diagnostics)
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
