package kubernetes

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/testkit"
)

// leases is an API server with one Lease. given is called when the Lease has no holder any more.
type leases struct {
	mu    sync.Mutex
	lease map[string]any
	given func()
}

func (l *leases) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodGet {
		if l.lease == nil {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			return
		}
	} else {
		body, _ := io.ReadAll(r.Body)
		l.lease = nil
		_ = json.Unmarshal(body, &l.lease)
		if spec, _ := l.lease["spec"].(map[string]any); spec["holderIdentity"] == nil || spec["holderIdentity"] == "" {
			l.given()
		}
	}
	_ = json.NewEncoder(w).Encode(l.lease)
}

// TestTheLeaseIsGivenBackAfterTheWriter: another replica becomes the leader only when this one writes no more.
func TestTheLeaseIsGivenBackAfterTheWriter(t *testing.T) {
	leading, finish := make(chan struct{}), make(chan struct{})
	given := make(chan struct{}, 1)
	api := &leases{given: func() { given <- struct{}{} }}
	server := httptest.NewServer(api)
	defer server.Close()
	l, err := NewLeader(LeaderConfig{
		API: &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, Namespace: "istio-system",
		Name: "status", Identity: "a", Terms: TermsOf(15 * time.Second),
		Lead: func(ctx context.Context) {
			close(leading)
			<-ctx.Done()
			<-finish
		},
		Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	<-leading
	stop()
	select {
	case <-given:
		t.Error("the lease is given back while the writer writes")
	case <-time.After(200 * time.Millisecond):
	}
	close(finish)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	select {
	case <-given:
	default:
		t.Error("the lease is kept")
	}
}
