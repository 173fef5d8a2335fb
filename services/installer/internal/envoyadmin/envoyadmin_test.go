package envoyadmin_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/table"
)

// admin serves shortened answers of a real Envoy 1.40 on a unix socket.
func admin(t *testing.T) *envoyadmin.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "admin") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for path, file := range map[string]string{"/config_dump": "config_dump.json", "/clusters": "clusters.json", "/certs": "certs.json"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, filepath.Join("testdata", file)) })
	}
	mux.HandleFunc("/stats", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("filter") != "update_rejected$" {
			http.Error(w, "unexpected filter", http.StatusBadRequest)
			return
		}
		_, _ = w.Write([]byte(`{"stats":[{"name":"cluster_manager.cds.update_rejected","value":0},{"name":"a.update_rejected","value":2},{"histograms":{}}]}`))
	})
	mux.HandleFunc("/server_info", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"version":"9e55/1.40.0/Clean/RELEASE/BoringSSL"}`))
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(func() { _ = server.Close() })
	return envoyadmin.New(socket)
}

func TestTables(t *testing.T) {
	c := admin(t)
	ctx := context.Background()
	dump, err := c.Dump(ctx)
	if err != nil {
		t.Fatal(err)
	}
	clusters, err := c.Clusters(ctx)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC)
	for name, make := range map[string]func() (*table.Table, error){
		"clusters":     dump.ClustersTable,
		"listeners":    dump.ListenersTable,
		"routes":       dump.RoutesTable,
		"secrets":      func() (*table.Table, error) { return dump.SecretsTable(at) },
		"endpoints":    func() (*table.Table, error) { return clusters.EndpointsTable(), nil },
		"virtualhosts": dump.VirtualHostsTable,
	} {
		t.Run(name, func(t *testing.T) {
			tab, err := make()
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := tab.Write(&out); err != nil {
				t.Fatal(err)
			}
			testkit.Golden(t, filepath.Join("testdata", name+".txt"), out.Bytes())
		})
	}
}

// TestNameFilterKeepsOtherSections: the filter by name removes the resources of other names from its section only.
func TestNameFilterKeepsOtherSections(t *testing.T) {
	c := admin(t)
	dump, err := c.Dump(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		section envoyadmin.Section
		text    string
		table   func(*envoyadmin.Dump) (*table.Table, error)
	}{
		"clusters":      {envoyadmin.Clusters, "reviews", (*envoyadmin.Dump).ClustersTable},
		"listeners":     {envoyadmin.Listeners, "15080", (*envoyadmin.Dump).ListenersTable},
		"routes":        {envoyadmin.Routes, "reviews", (*envoyadmin.Dump).RoutesTable},
		"virtual hosts": {envoyadmin.VirtualHosts, "reviews", (*envoyadmin.Dump).VirtualHostsTable},
		"secrets":       {envoyadmin.Secrets, "default", func(d *envoyadmin.Dump) (*table.Table, error) { return d.SecretsTable(time.Now()) }},
	} {
		t.Run(name, func(t *testing.T) {
			whole, err := tc.table(dump)
			if err != nil {
				t.Fatal(err)
			}
			named, err := dump.Only(tc.section, envoyadmin.Filter{Name: tc.text})
			if err != nil {
				t.Fatal(err)
			}
			some, err := tc.table(named)
			if err != nil {
				t.Fatal(err)
			}
			about := func(row []string) bool { return strings.Contains(strings.Join(row[:min(len(row), 3)], " "), tc.text) }
			var want [][]string
			for _, row := range whole.Rows {
				if about(row) {
					want = append(want, row)
				}
			}
			if len(want) == 0 || len(want) == len(whole.Rows) {
				t.Fatalf("the test shows nothing: %d of %d rows are about %q", len(want), len(whole.Rows), tc.text)
			}
			if !slices.EqualFunc(some.Rows, want, slices.Equal) {
				t.Errorf("rows %q, want %q", some.Rows, want)
			}
			text, err := named.JSON(tc.section)
			if err != nil || !strings.Contains(string(text), tc.text) {
				t.Errorf("JSON %s, %v", text, err)
			}
		})
	}
	clusters, err := c.Clusters(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range clusters.Only(envoyadmin.Filter{Name: "reviews"}).EndpointsTable().Rows {
		if !strings.Contains(row[3], "reviews") {
			t.Errorf("row %q", row)
		}
	}
}

func TestExpiredCertificateIsNotValid(t *testing.T) {
	dump, err := admin(t).Dump(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	tab, err := dump.SecretsTable(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range tab.Rows {
		if row[0] == "default" && row[3] != "false" {
			t.Errorf("row %v", row)
		}
	}
}

func TestPrivateKeysAreNeverShown(t *testing.T) {
	const dumped = `{"configs":[{"@type":"type.googleapis.com/envoy.admin.v3.SecretsConfigDump","dynamic_active_secrets":[{"secret":{
		"tls_certificate":{"private_key":{"inline_bytes":"c2VjcmV0"},"certificate_chain":{"inline_string":"public"}},
		"other":["-----BEGIN EC PRIVATE KEY-----\nc2VjcmV0"],"password":{"inline_string":"c2VjcmV0"}}}]}]}`
	d, err := envoyadmin.ParseDump([]byte(dumped))
	if err != nil {
		t.Fatal(err)
	}
	text, err := d.JSON(envoyadmin.Secrets)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "c2VjcmV0") || !strings.Contains(string(text), "public") {
		t.Errorf("%s", text)
	}
	const routed = `{"configs":[{"@type":"type.googleapis.com/envoy.admin.v3.RoutesConfigDump","dynamic_route_configs":[{"route_config":{
		"name":"80","virtual_hosts":[{"name":"public","typed_per_filter_config":{"f":{"private_key":"c2VjcmV0"}}}]}}]}]}`
	r, err := envoyadmin.ParseDump([]byte(routed))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := r.JSON(envoyadmin.VirtualHosts); err != nil || strings.Contains(string(text), "c2VjcmV0") ||
		!strings.Contains(string(text), "public") {
		t.Errorf("%s, %v", text, err)
	}
	if empty, err := d.JSON(envoyadmin.Routes); err != nil || string(empty) != "{}" {
		t.Errorf("a section that is not there: %s, %v", empty, err)
	}
}

func TestCertificates(t *testing.T) {
	list, err := admin(t).Certificates(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 || list[0].Serial == "" || list[0].NotAfter.IsZero() ||
		!strings.HasSuffix(list[0].Names[0].URI, "/sa/bookinfo-productpage") {
		t.Errorf("certificates %+v", list)
	}
	if envoyadmin.Fresh(list, list) != nil {
		t.Error("an old certificate was taken for a new one")
	}
	next := append([]envoyadmin.Certificate{list[0]}, envoyadmin.Certificate{Serial: "new"})
	if got := envoyadmin.Fresh(next, list); got == nil || got.Serial != "new" {
		t.Errorf("fresh %v", got)
	}
}

func TestStatsAndVersion(t *testing.T) {
	c := admin(t)
	stats, err := c.Stats(context.Background(), "update_rejected$")
	if err != nil || len(stats) != 2 || stats["a.update_rejected"] != 2 {
		t.Errorf("stats %v, %v", stats, err)
	}
	if v, err := c.Version(context.Background()); err != nil || v != "1.40.0" {
		t.Errorf("version %q, %v", v, err)
	}
}

func TestErrors(t *testing.T) {
	if _, err := envoyadmin.New(filepath.Join(t.TempDir(), "none")).Dump(context.Background()); err == nil ||
		!strings.Contains(err.Error(), "does not run") {
		t.Errorf("no socket: %v", err)
	}
	if _, err := admin(t).Get(context.Background(), "/nothing"); err == nil || errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "404") {
		t.Errorf("unknown path: %v", err)
	}
	for _, bad := range []string{"", "[]", `{"configs":[3]}`} {
		if _, err := envoyadmin.ParseDump([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
