package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// catalogOf answers as a Consul with a service web of some instances, and counts requests. Once emptied is closed, web
// is gone.
func catalogOf(t *testing.T, instances int, emptied <-chan struct{}) (address string, requests *atomic.Int32) {
	t.Helper()
	requests = &atomic.Int32{}
	var web []string
	for i := range instances {
		web = append(web, fmt.Sprintf(`{"Node": {"Node": "n%[1]d", "Address": "10.0.0.%[1]d"}, "Service": {"ID": "web-%[1]d", "Service": "web",
			"Port": 80}, "Checks": []}`, i+1))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Query().Has("index") {
			select {
			case <-emptied:
			case <-r.Context().Done():
				return
			}
		}
		index, names, list := "7", `{"consul": [], "web": []}`, "["+strings.Join(web, ",")+"]"
		select {
		case <-emptied:
			index, names, list = "8", `{"consul": []}`, "[]"
		default:
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("X-Consul-Index", index)
		h.Set("X-Consul-KnownLeader", "true")
		h.Set("X-Consul-LastContact", "0")
		switch r.URL.Path {
		case "/v1/catalog/services":
			_, _ = w.Write([]byte(names))
		case "/v1/health/service/web":
			_, _ = w.Write([]byte(list))
		default:
			http.Error(w, "ACL support disabled", http.StatusUnauthorized)
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL, requests
}

// TestARegistryIsHeldAndAccepted: what an emptied catalog lacks is shown, and an administrator's word removes it.
func TestARegistryIsHeldAndAccepted(t *testing.T) {
	emptied := make(chan struct{})
	address, _ := catalogOf(t, 12, emptied)
	f := newFixture(t)
	o := f.options()
	o.RegistryDir, o.RegistryTimeout, o.RegistryAllow = t.TempDir(), time.Minute, []string{"127.0.0.0/8"}
	testkit.WriteFile(t, filepath.Join(o.RegistryDir, "east.yaml"),
		[]byte("address: "+address+"\ndatacenter: dc1\nrules: [{services: ['*'], namespace: consul}]\n"))
	r := f.start(o)
	r.WaitReady()
	store := r.store()
	count := func(want int) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			list, err := store.List(t.Context(), &configv1.ListRequest{InForce: true})
			if err == nil && len(list.Objects) != want {
				err = fmt.Errorf("%d objects, want %d", len(list.Objects), want)
			}
			return err
		})
	}
	count(13)
	close(emptied)
	testkit.Eventually(t, testkit.Patience, func() error {
		res, err := store.ListSources(t.Context(), &configv1.ListSourcesRequest{})
		for _, s := range res.GetSources() {
			if s.GetName() == "consul/east" && s.GetState() == configv1.SourceState_SOURCE_STATE_HELD &&
				s.GetWithheld()[0].GetWhat() == "endpoints" && s.GetWithheld()[0].GetObjects() == 12 {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("nothing is held: %v", res))
	})
	count(13)
	res, err := store.AcceptSource(t.Context(), &configv1.AcceptSourceRequest{Name: "consul/east"})
	if err != nil || res.GetRemoved() != 12 {
		t.Errorf("%v, %v", res, err)
	}
	count(0)
}

// TestARegistryIsPreviewed: by an administrator alone, without effect, with a line in the audit log; the token is kept
// nowhere.
func TestARegistryIsPreviewed(t *testing.T) {
	const token = "4e8c2a77-secret-token"
	address, requests := catalogOf(t, 1, nil)
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
	if all, err := r.store().List(t.Context(), &configv1.ListRequest{InForce: true}); err != nil || len(all.GetObjects()) != 1 {
		t.Errorf("objects have come of a preview: %v, %v", all, err)
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
