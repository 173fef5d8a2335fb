package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/contract"
)

func watch(ctx context.Context, t *testing.T, h *harness) cav1.TrustService_WatchBundleClient {
	t.Helper()
	stream, err := cav1.NewTrustServiceClient(h.dial(nil)).WatchBundle(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// send sends a request. The ca may have ended the stream already: Send returns io.EOF then, and Recv the status.
func send(t *testing.T, stream cav1.TrustService_WatchBundleClient, subscriber string, acked uint64) {
	t.Helper()
	if err := stream.Send(&cav1.WatchBundleRequest{Subscriber: subscriber, AckedGeneration: acked}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// page gets a debug page as the administrator.
func (h *harness) page(path string, into any) {
	h.t.Helper()
	if status := h.get(path, h.issuer.Token(contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience),
		into); status != http.StatusOK {
		h.t.Fatalf("%s: HTTP %d", path, status)
	}
}

func (h *harness) get(path, token string, into any) int {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, "http://"+h.server.Addr("ops-address").String()+path, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(body, into); err != nil {
			h.t.Fatalf("%s: %v in %s", path, err, body)
		}
	}
	return res.StatusCode
}

func (h *harness) waitBehind(watches, behind int) {
	h.t.Helper()
	testkit.Eventually(h.t, callTimeout, func() error {
		var page bundlePage
		h.page("/debug/bundle", &page)
		if page.Watches != watches || page.Behind != behind {
			return fmt.Errorf("%d watches with %d behind, want %d and %d", page.Watches, page.Behind, watches, behind)
		}
		return nil
	})
}

func TestWatchBundle(t *testing.T) {
	t.Parallel()
	extra := filepath.Join(t.TempDir(), "extra.pem")
	one, two := testkit.PKI(t), testkit.PKI(t)
	testkit.WriteFile(t, extra, one.RootPEM)
	h := start(t, func(o *Options) { o.ExtraRootsFile = extra })
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()

	stream := watch(as(ctx, h.token("default", "reviews")), t, h)
	send(t, stream, "reviews-1", 0)
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if first.GetTrustDomain() != testkit.TrustDomain || first.GetGeneration() != 1 || len(first.GetRootCertificates()) != 2 {
		t.Fatalf("first bundle: %v", first)
	}
	h.waitBehind(1, 1)
	send(t, stream, "reviews-1", 1)
	h.waitBehind(1, 0)

	testkit.WriteFile(t, extra, append(one.RootPEM, two.RootPEM...))
	second, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if second.GetGeneration() != 2 || len(second.GetRootCertificates()) != 3 ||
		!strings.Contains(strings.Join(second.GetRootCertificates(), ""), string(two.RootPEM)) {
		t.Fatalf("second bundle: %v", second)
	}
	h.waitBehind(1, 1)
	if got := h.metric("fairlead_ca_bundle_watches_behind", ""); got != 1 {
		t.Errorf("metric says %v behind, want 1", got)
	}
	send(t, stream, "reviews-1", 2)
	h.waitBehind(1, 0)
	cancel()
	h.waitBehind(0, 0)
}

func TestBrokenExtraRootsKeepTheLastBundle(t *testing.T) {
	extra := filepath.Join(t.TempDir(), "extra.pem")
	testkit.WriteFile(t, extra, testkit.PKI(t).RootPEM)
	h := start(t, func(o *Options) { o.ExtraRootsFile = extra })
	testkit.WriteFile(t, extra, []byte("not PEM"))
	if err := h.server.bundle.Publish(t.Context()); err == nil || !strings.Contains(err.Error(), extra) {
		t.Fatalf("got %v, want an error that names the file", err)
	}
	var page bundlePage
	h.page("/debug/bundle", &page)
	if page.Generation != 1 || len(page.Roots) != 2 || page.Problem == "" {
		t.Errorf("bundle page %+v, want generation 1 with 2 roots and the problem", page)
	}
	if err := os.Remove(extra); err != nil {
		t.Fatal(err)
	}
	if h.get("/readyz", "", nil) != http.StatusOK {
		t.Error("not ready although the last bundle serves")
	}
}

func TestWatchBundleRefusals(t *testing.T) {
	h := start(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	user := as(ctx, h.token("default", "reviews"))
	last := func(stream cav1.TrustService_WatchBundleClient) error {
		for {
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
	}
	anonymous := watch(ctx, t, h)
	if err := wantCode(last(anonymous), codes.Unauthenticated); err != nil {
		t.Error("no credentials:", err)
	}
	nameless := watch(user, t, h)
	send(t, nameless, "", 0)
	if err := wantCode(last(nameless), codes.InvalidArgument); err != nil {
		t.Error("no subscriber:", err)
	}
	liar := watch(user, t, h)
	send(t, liar, "liar", 0)
	if _, err := liar.Recv(); err != nil {
		t.Fatal(err)
	}
	send(t, liar, "liar", 7)
	if err := wantCode(last(liar), codes.InvalidArgument); err != nil {
		t.Error("acknowledged what was never sent:", err)
	}
	// One that comes from a ca with a longer history starts over.
	moved := watch(user, t, h)
	send(t, moved, "moved", 7)
	if got, err := moved.Recv(); err != nil || got.GetGeneration() != 1 {
		t.Errorf("subscriber with an unknown generation: %v, %v", got, err)
	}
	h.waitBehind(1, 1)
	for range h.options.MaxWatches - 1 {
		more := watch(user, t, h)
		send(t, more, "more", 0)
		if _, err := more.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	oneTooMany := watch(user, t, h)
	send(t, oneTooMany, "late", 0)
	if err := wantCode(last(oneTooMany), codes.ResourceExhausted); err != nil {
		t.Error("above the limit:", err)
	}
}

// Every handler of the HTTP port is anonymous on purpose or refuses whoever is not the administrator.
func TestEveryHandlerIsGuarded(t *testing.T) {
	h := start(t, nil)
	anonymous := map[string]bool{"/livez": true, "/readyz": true, "/metrics": true}
	tokens := map[string]string{
		"nobody":                  "",
		"a workload":              h.token("default", "reviews"),
		"a workload, admin's aud": h.issuer.Token("default", "reviews", contract.AdminAudience),
		"admin, wrong aud":        h.token(contract.SystemNamespace, contract.AdminAccount),
	}
	for _, handler := range h.server.Ops.Handlers() {
		for who, token := range tokens {
			status := h.get(handler.Path, token, nil)
			if open := status == http.StatusOK; open != anonymous[handler.Path] {
				t.Errorf("%s for %s: HTTP %d", handler.Path, who, status)
			}
		}
	}
}

func TestIssuedPage(t *testing.T) {
	h := start(t, nil)
	h.mustCreate(as(t.Context(), h.token("default", "reviews")), h.dial(nil), 0)
	var page struct {
		Issued     map[string]int
		Refused    map[string]int
		LastIssued time.Time `json:"last_issued"`
	}
	h.page("/debug/issued", &page)
	if page.Issued["jwt"] != 1 || page.LastIssued.IsZero() {
		t.Errorf("page %+v, want one certificate by token", page)
	}
}
