package envoyadmin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/table"
)

// rows are the first cells of a table, each once.
func rows(t *table.Table, err error) (list []string) {
	if err != nil {
		return []string{err.Error()}
	}
	for _, row := range t.Rows {
		if !slices.Contains(list, row[0]) {
			list = append(list, row[0])
		}
	}
	return list
}

// dump is the configuration that the tests of filters use.
const dump = `{"configs": [
 {"@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump", "dynamic_active_clusters": [
  {"cluster": {"name": "outbound|80|v1|web.shop.svc.cluster.local", "type": "EDS"}},
  {"cluster": {"name": "outbound|81||web.shop.svc.cluster.local", "type": "EDS"}},
  {"cluster": {"name": "inbound|80||"}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump", "dynamic_listeners": [
  {"name": "web", "active_state": {"listener": {"name": "web", "address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}, "filter_chains": [{"filters": [
   {"typed_config": {"@type": "x/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"}}]}]}}},
  {"name": "db", "active_state": {"listener": {"name": "db", "address": {"socket_address": {"address": "10.0.0.2", "port_value": 81}}, "default_filter_chain": {"filters": [
   {"typed_config": {"@type": "x/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "weighted_clusters": {"clusters": [{"name": "outbound|1|a|db", "weight": 1}, {"name": "outbound|1|b|db", "weight": 3}]}}}]}}}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.RoutesConfigDump", "dynamic_route_configs": [{"route_config": {"name": "80", "virtual_hosts": [
  {"name": "web:80", "domains": ["web", "web.shop"], "routes": [
   {"match": {"prefix": "/a"}, "route": {"weighted_clusters": {"clusters": [{"name": "outbound|80|v1|web.shop", "weight": 4}, {"name": "outbound|80|v2|web.shop", "weight": 1}, {"name": "outbound|80||other", "weight": 5}]},
    "request_mirror_policies": [{"cluster": "outbound|80||shadow", "runtime_fraction": {"default_value": {"numerator": 5000, "denominator": "MILLION"}}}]}},
   {"match": {"prefix": "/b"}, "redirect": {"https_redirect": true, "host_redirect": "web.example", "port_redirect": 8443, "path_redirect": "/c"}},
   {"match": {"prefix": "/d"}, "direct_response": {"status": 503}},
   {"match": {"prefix": "/e"}, "route": {"cluster_header": "x-cluster"}}]},
  {"name": "db:81", "domains": ["db"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "db"}}]}]}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.EndpointsConfigDump", "dynamic_endpoint_configs": [{"endpoint_config": {"cluster_name": "outbound|80|v1|web.shop", "endpoints": [{"lb_endpoints": [
  {"endpoint": {"address": {"socket_address": {"address": "10.0.0.3", "port_value": 8080}}}},
  {"endpoint": {"address": {"socket_address": {"address": "10.0.0.4", "port_value": 8081}}}, "health_status": "UNHEALTHY"}]}]}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.EcdsConfigDump", "ecds_filters": [
  {"version_info": "7", "ecds_filter": {"@type": "x", "name": "lua", "typed_config": {"@type": "x/envoy.extensions.filters.http.lua.v3.Lua"}}},
  {"version_info": "8", "ecds_filter": {"@type": "x", "name": "wasm", "typed_config": {"@type": "x/W"}}}]}
]}`

func TestFilters(t *testing.T) {
	whole, err := envoyadmin.ParseDump([]byte(dump))
	if err != nil {
		t.Fatal(err)
	}
	clusters := func(d *envoyadmin.Dump) (list []string) {
		tab, err := d.ClustersTable()
		if err != nil {
			return []string{err.Error()}
		}
		for _, row := range tab.Rows {
			list = append(list, row[3]+" "+row[1])
		}
		return list
	}
	listeners := func(d *envoyadmin.Dump) []string { return rows(d.ListenersTable()) }
	endpoints := func(d *envoyadmin.Dump) []string { return rows(d.EndpointsTable()) }
	extensions := func(d *envoyadmin.Dump) []string { return rows(d.ExtensionsTable()) }
	hosts := func(d *envoyadmin.Dump) (list []string) {
		tab, err := d.VirtualHostsTable()
		if err != nil {
			return []string{err.Error()}
		}
		for _, row := range tab.Rows {
			list = append(list, row[1])
		}
		return list
	}
	type filter = envoyadmin.Filter
	for name, tc := range map[string]struct {
		section envoyadmin.Section
		filter  filter
		show    func(*envoyadmin.Dump) []string
		want    []string
	}{
		"nothing":            {envoyadmin.Clusters, filter{}, clusters, []string{"inbound 80", "outbound 80", "outbound 81"}},
		"fqdn":               {envoyadmin.Clusters, filter{FQDN: "web.shop"}, clusters, []string{"outbound 80", "outbound 81"}},
		"port":               {envoyadmin.Clusters, filter{Port: 80}, clusters, []string{"inbound 80", "outbound 80"}},
		"direction":          {envoyadmin.Clusters, filter{Direction: "INBOUND"}, clusters, []string{"inbound 80"}},
		"subset":             {envoyadmin.Clusters, filter{Subset: "v1"}, clusters, []string{"outbound 80"}},
		"cluster type":       {envoyadmin.Clusters, filter{Type: "static"}, clusters, []string{"inbound 80"}},
		"listener's address": {envoyadmin.Listeners, filter{Address: "0.0.2"}, listeners, []string{"db"}},
		"listener's port":    {envoyadmin.Listeners, filter{Port: 80}, listeners, []string{"web"}},
		"listener's type":    {envoyadmin.Listeners, filter{Type: "tcp"}, listeners, []string{"db"}},
		"route's host":       {envoyadmin.Routes, filter{FQDN: "web.shop"}, hosts, []string{"web:80"}},
		"route's port":       {envoyadmin.VirtualHosts, filter{Port: 81}, hosts, []string{"db:81"}},
		"endpoint's status":  {envoyadmin.Endpoints, filter{Status: "unhealthy"}, endpoints, []string{"10.0.0.4:8081"}},
		"endpoint's port":    {envoyadmin.Endpoints, filter{Port: 8080}, endpoints, []string{"10.0.0.3:8080"}},
		"endpoint's address": {envoyadmin.Endpoints, filter{Address: "10.0.0.3"}, endpoints, []string{"10.0.0.3:8080"}},
		"endpoint's subset":  {envoyadmin.Endpoints, filter{Subset: "v2"}, endpoints, nil},
		"endpoint's cluster": {envoyadmin.Endpoints, filter{Cluster: "|80|v1|"}, endpoints, []string{"10.0.0.3:8080", "10.0.0.4:8081"}},
		"extension":          {envoyadmin.Extensions, filter{Name: "lu"}, extensions, []string{"lua"}},
		"of another section": {envoyadmin.Extensions, filter{Status: "HEALTHY"}, extensions, []string{"lua", "wasm"}},
	} {
		t.Run(name, func(t *testing.T) {
			some, err := whole.Only(tc.section, tc.filter)
			if err != nil {
				t.Fatal(err)
			}
			if got := tc.show(some); !slices.Equal(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
	if err := (filter{Name: "x", Port: 1}).Check(envoyadmin.Clusters); err != nil {
		t.Error(err)
	}
	if err := (filter{Status: "x"}).Check(envoyadmin.Clusters); err == nil || !strings.Contains(err.Error(), "--status") ||
		!strings.Contains(err.Error(), "--fqdn") {
		t.Error(err)
	}
	all, err := whole.AllJSON()
	var tree struct{ Configs []json.RawMessage }
	if err != nil || json.Unmarshal(all, &tree) != nil || len(tree.Configs) != 5 {
		t.Errorf("%s, %v", all, err)
	}
}

func TestDestinations(t *testing.T) {
	d, err := envoyadmin.ParseDump([]byte(dump))
	if err != nil {
		t.Fatal(err)
	}
	tab, err := d.RoutesTable()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range tab.Rows {
		got = append(got, row[4])
	}
	want := []string{
		"web.shop:80 v1 (40%), v2 (10%), other:80 (50%); mirror: shadow:80 (0.5%)",
		"redirect: https://web.example:8443/c", "status 503", "cluster of header x-cluster", "db",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	tab, err = d.ListenersTable()
	if err != nil || tab.Rows[0][4] != "Clusters: db:1 a (25%), b (75%)" {
		t.Errorf("%q, %v", tab.Rows, err)
	}
}

func TestServedDump(t *testing.T) {
	const prefix = "type.googleapis.com/envoy.config."
	d, err := envoyadmin.ServedDump(map[string][]envoyadmin.Served{
		prefix + "cluster.v3.Cluster": {{Name: "one", Version: "1",
			Resource: json.RawMessage(`{"name": "outbound|80||one", "type": "EDS"}`)}},
		prefix + "listener.v3.Listener":        {{Name: "l", Resource: json.RawMessage(`{"name": "l"}`)}},
		prefix + "route.v3.RouteConfiguration": {{Name: "80", Resource: json.RawMessage(`{"name": "80", "virtual_hosts": [{"name": "own"}]}`)}},
		prefix + "route.v3.VirtualHost": {{Name: "80/web", Resource: json.RawMessage(`{"name": "web"}`)},
			{Name: "81/other", Resource: json.RawMessage(`{"name": "other"}`)}},
		"type.googleapis.com/istio.x.NameTable": {{Name: "table", Resource: json.RawMessage(`{}`)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := rows(d.ClustersTable()); !slices.Equal(got, []string{"one"}) {
		t.Errorf("clusters %q", got)
	}
	tab, err := d.RoutesTable()
	if err != nil || len(tab.Rows) != 2 || tab.Rows[0][1] != "own" || tab.Rows[1][1] != "web" {
		t.Errorf("routes %q, %v", tab.Rows, err)
	}
	if _, err := envoyadmin.ServedDump(
		map[string][]envoyadmin.Served{prefix + "cluster.v3.Cluster": {{Resource: json.RawMessage(`[]`)}}}); err == nil {
		t.Error("what is no message is accepted")
	}
}

func TestLogLevels(t *testing.T) {
	levels := map[string]string{"http": "warning", "upstream": "warning", "main": "warning"}
	lis, err := net.Listen("unix", filepath.Join(shortDir(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /logging", func(w http.ResponseWriter, r *http.Request) {
		if all := r.URL.Query().Get("level"); all != "" {
			for name := range levels {
				levels[name] = all
			}
		}
		for _, one := range strings.Split(r.URL.Query().Get("paths"), ",") {
			if name, level, ok := strings.Cut(one, ":"); ok {
				levels[name] = level
			}
		}
		fmt.Fprintln(w, "active loggers:")
		for name, level := range levels {
			fmt.Fprintf(w, "  %s: %s\n", name, level)
		}
	})
	mux.HandleFunc("/server_info", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"command_line_options": {"log_level": "error", "component_log_level": "main:info"}}`)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(func() { _ = server.Close() })
	c := envoyadmin.New(lis.Addr().String())
	for _, tc := range []struct{ set, want string }{
		{"http:debug,upstream:warn", "http:debug main:warning upstream:warning"},
		{"info", "http:info main:info upstream:info"},
		{"error,main:trace", "http:error main:trace upstream:error"},
		{"", "http:error main:info upstream:error"}, // reset
	} {
		list, err := c.SetLogLevels(context.Background(), tc.set)
		if tc.set == "" {
			list, err = c.ResetLogLevels(context.Background())
		}
		var got []string
		for _, l := range list {
			got = append(got, l.Name+":"+l.Level)
		}
		if err != nil || strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %q, %v; want %s", tc.set, got, err, tc.want)
		}
	}
	for set, says := range map[string]string{"htpp:debug": `did you mean "http"?`, "http:debgu": `did you mean "debug"?`,
		"loud": "there are trace"} {
		if _, err := c.SetLogLevels(context.Background(), set); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", set, err)
		}
	}
	if levels["http"] != "error" {
		t.Errorf("what was refused has changed levels: %v", levels)
	}
}

// shortDir is a directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "admin")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
