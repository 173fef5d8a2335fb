package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// catalogOf answers as a Consul with a service web of one instance, and counts requests.
func catalogOf(t *testing.T) (address string, requests *atomic.Int32) {
	t.Helper()
	requests = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("X-Consul-Index", "7")
		h.Set("X-Consul-KnownLeader", "true")
		h.Set("X-Consul-LastContact", "0")
		switch {
		case r.URL.Query().Has("index"):
			<-r.Context().Done()
		case r.URL.Path == "/v1/catalog/services":
			_, _ = w.Write([]byte(`{"consul": [], "web": []}`))
		case r.URL.Path == "/v1/health/service/web":
			_, _ = w.Write([]byte(`[{"Node": {"Node": "n1", "Address": "10.0.0.1"}, "Service": {"ID": "web-1", "Service": "web", "Port": 80}, "Checks": []}]`))
		default:
			http.Error(w, "ACL support disabled", http.StatusUnauthorized)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, requests
}

// TestARegistryIsPreviewed: by an administrator alone, without effect, with a line in the audit log; the token is kept
// nowhere.
func TestARegistryIsPreviewed(t *testing.T) {
	const token = "4e8c2a77-secret-token"
	address, requests := catalogOf(t)
	f := newFixture(t)
	o := f.options()
	o.RolesFile, o.StateDir, o.RegistryAllow = f.rolesFile(roles), filepath.Join(f.dir, "state"), []string{"127.0.0.0/8"}
	r := f.start(o)
	r.WaitReady()
	r.apply(`{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: mine, namespace: a}, spec: {hosts: [web.service.consul],
		resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}]}}`)
	client, who := configv1.NewConfigStoreServiceClient(r.dial("")), configv1.NewAccessServiceClient(r.dial(""))
	preview := func(account, text string) (*configv1.PreviewRegistryResponse, error) {
		return client.PreviewRegistry(r.as(account), &configv1.PreviewRegistryRequest{Name: "east", Declaration: []byte(text)})
	}
	text := "address: " + address + "\ndatacenter: dc1\ntoken: " + token + "\nrules: [{services: [web], namespace: shop, account: web}]\n"
	for _, account := range []string{"ops/editor", "ops/everywhere", "ops/viewer"} {
		if _, err := preview(account, text); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", account, err)
		}
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests for callers who may not", n)
	}
	res, err := preview("ops/second", text)
	testkit.NoError(t, err)
	if sv := res.GetServices(); len(sv) != 1 || sv[0].GetHosts()[0] != "web.service.consul" || sv[0].GetAccount() != "web" ||
		sv[0].GetPorts()[0] != "80/TCP" || sv[0].GetReady() != 1 {
		t.Errorf("%v", res)
	}
	if p := res.GetProblems(); len(p) != 1 || !p[0].GetConflict() || p[0].GetField() != "host web.service.consul" ||
		!strings.Contains(p[0].GetReason(), "ServiceEntry a/mine of source memory") || p[0].GetRemedy() == "" {
		t.Errorf("%v", p)
	}
	if all := r.objects(); strings.Contains(all, "shop") {
		t.Errorf("objects have come of a preview: %s", all)
	}
	for account, c := range map[string]struct {
		text string
		code codes.Code
		says string
	}{
		"metadata": {strings.Replace(text, address, "https://169.254.169.254", 1), codes.InvalidArgument, "address: "},
		"files":    {text + "caFile: /etc/passwd", codes.InvalidArgument, "caFile: names a file"},
		"nobody": {strings.Replace(text, address, "http://"+testkit.FreeAddress(t).String(), 1), codes.FailedPrecondition,
			"the registry cannot be read"},
	} {
		if _, err := preview("ops/second", c.text); status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) ||
			strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v", account, err)
		}
	}
	log, err := who.ListAudit(r.as("ops/second"), &configv1.ListAuditRequest{Last: 1000})
	testkit.NoError(t, err)
	count := map[string]int{}
	for _, line := range log.Lines {
		var e struct {
			Call, Result string
			Objects      []struct{ Verb, Kind, Name string }
		}
		testkit.NoError(t, json.Unmarshal([]byte(line), &e))
		if e.Call == "PreviewRegistry" {
			count[e.Result+" "+e.Objects[0].Verb+" "+e.Objects[0].Kind+" "+e.Objects[0].Name]++
		}
		if strings.Contains(line, token) {
			t.Errorf("the token is in the audit log: %s", line)
		}
	}
	if count["accepted preview Registry east"] != 4 || count["refused preview Registry east"] < 4 {
		t.Errorf("the audit log has %v", count)
	}
	r.Stop()
	testkit.NoError(t, filepath.WalkDir(f.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), token) {
			t.Errorf("the token is in %s", path)
		}
		return err
	}))
}
