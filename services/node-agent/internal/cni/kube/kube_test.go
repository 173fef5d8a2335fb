package kube

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// api answers with what answer says, and keeps the requests.
func api(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, body string)) *Client {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if got := r.Header.Get("Authorization"); got != "Bearer token" {
			t.Errorf("authorization %q", got)
		}
		answer(w, r, string(body))
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string][]byte{"ca.crt": ca, "token": []byte("token\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := New(Config{Address: server.Listener.Addr().String(), Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRequests(t *testing.T) {
	var seen string
	c := api(t, func(w http.ResponseWriter, r *http.Request, body string) {
		seen = r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + body
		switch {
		case strings.HasSuffix(r.URL.Path, "/missing"):
			http.Error(w, `{"message": "pods \"missing\" not found"}`, http.StatusNotFound)
		case strings.HasSuffix(r.URL.Path, "/hidden"):
			w.WriteHeader(http.StatusForbidden)
		case strings.HasSuffix(r.URL.Path, "/ending"):
			fmt.Fprint(w, `{"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}`)
		case strings.HasSuffix(r.URL.Path, "/nodes/n"):
			fmt.Fprint(w, `{"metadata": {"resourceVersion": "5"}, "spec": {"taints": [{"key": "a", "effect": "NoExecute", "timeAdded": "t"}, {"key": "b"}]}}`)
		default:
			fmt.Fprint(w, `{"metadata": {"name": "p", "uid": "u"}, "status": {"initContainerStatuses": [{"name": "i", "state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 126}}}]}}`)
		}
	})
	ctx := t.Context()
	p, err := c.Pod(ctx, "ns", "p")
	if err != nil || p.Metadata.UID != "u" || p.Status.InitContainerStatuses[0].LastState.Terminated.ExitCode != 126 ||
		p.Status.InitContainerStatuses[0].State.Waiting == nil {
		t.Errorf("%+v, %v", p, err)
	}
	p.Metadata.Namespace = "ns"
	for want, call := range map[string]func() error{
		`DELETE /api/v1/namespaces/ns/pods/p application/json {"apiVersion":"v1",` +
			`"kind":"DeleteOptions","preconditions":{"uid":"u"}}`: func() error {
			return c.DeletePod(ctx, p)
		},
		`PATCH /api/v1/namespaces/ns/pods/p/status application/merge-patch+json {"metadata":{"labels":{"k":"v"},"uid":"u"}}`: func() error {
			return c.LabelPod(ctx, p, "k", "v")
		},
		`PATCH /api/v1/nodes/n application/merge-patch+json {"metadata":{"resourceVersion":"5"},"spec":{"taints":[{"key":"b"}]}}`: func() error {
			had, err := c.Untaint(ctx, "n", "a")
			if !had {
				t.Error("the node had the taint")
			}
			return err
		},
		`GET /api/v1/nodes/n  `: func() error {
			had, err := c.Untaint(ctx, "n", "c")
			if had {
				t.Error("the node had no such taint")
			}
			return err
		},
	} {
		if err := call(); err != nil || seen != want {
			t.Errorf("%s, %v, want %s", seen, err, want)
		}
	}
	if err := c.Report(ctx, p, "Warning", "R", "m", "n"); err != nil ||
		!strings.Contains(seen, `"involvedObject":{"apiVersion":"v1","kind":"Pod","name":"p","namespace":"ns","uid":"u"}`) {
		t.Errorf("%s, %v", seen, err)
	}
	for name, want := range map[string]bool{"missing": true, "hidden": true, "ending": true, "here": false} {
		if gone, err := c.DaemonSetGone(ctx, "ns", name); err != nil || gone != want {
			t.Errorf("DaemonSet %s: gone %t, %v", name, gone, err)
		}
	}
	if _, err := c.Pod(ctx, "ns", "missing"); !Gone(err) || !strings.Contains(err.Error(), `pods "missing" not found`) {
		t.Errorf("%v", err)
	}
	if _, err := c.Pod(ctx, "ns", "hidden"); !Denied(err) {
		t.Errorf("%v", err)
	}
}

func TestPodsAreListedAndThenFollowed(t *testing.T) {
	c := api(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		if r.URL.Query().Get("fieldSelector") != "spec.nodeName=n" {
			t.Errorf("query %s", r.URL.RawQuery)
		}
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprint(w, `{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]}`)
			return
		}
		if r.URL.Query().Get("resourceVersion") != "7" {
			t.Errorf("query %s", r.URL.RawQuery)
		}
		enc := json.NewEncoder(w)
		for _, e := range []string{
			`{"type": "ADDED", "object": {"metadata": {"name": "b"}}}`, `{"type": "BOOKMARK", "object": {}}`,
			`{"type": "DELETED", "object": {"metadata": {"name": "a"}}}`,
			`{"type": "MODIFIED", "object": {"metadata": {"name": "c"}}}`, `{"type": "ERROR", "object": {"code": 410}}`,
			`{"type": "ADDED", "object": {"metadata": {"name": "d"}}}`,
		} {
			if err := enc.Encode(json.RawMessage(e)); err != nil {
				t.Error(err)
			}
		}
	})
	var seen []string
	if err := c.FollowPods(t.Context(), "n", func() { seen = append(seen, "ready") },
		func(p *Pod) { seen = append(seen, p.Metadata.Name) }); err != nil {
		t.Error(err)
	}
	if got := strings.Join(seen, " "); got != "a ready b c" {
		t.Errorf("seen %q", got)
	}
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	dir := t.TempDir()
	if _, err := New(Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "--kubernetes-address") {
		t.Errorf("no address: %v", err)
	}
	if _, err := New(Config{Address: "127.0.0.1:1", Dir: dir}); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("no certificates: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Address: "127.0.0.1:1", Dir: dir}); err == nil || !strings.Contains(err.Error(), "has none") {
		t.Errorf("no certificate in the file: %v", err)
	}
	c := api(t, func(w http.ResponseWriter, _ *http.Request, _ string) { fmt.Fprint(w, "{") })
	if _, err := c.Pod(t.Context(), "ns", "p"); err == nil || !strings.Contains(err.Error(), "answer of Kubernetes' API") {
		t.Errorf("half an answer: %v", err)
	}
	if err := os.Remove(filepath.Join(c.config.Dir, "token")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Pod(context.Background(), "ns", "p"); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("no token: %v", err)
	}
}
