package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
)

// TestWhoMayCallWhat tries every registered method with every kind of caller.
func TestWhoMayCallWhat(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.WaitReady()
	admin := f.admin()
	callers := map[string]struct {
		account, token string
		allowed        []string
		refusal        codes.Code
	}{
		"anonymous": {refusal: codes.Unauthenticated},
		"xds-server": {account: "xds-server", allowed: []string{"ConfigService", "FleetService", "SecretService"},
			refusal: codes.PermissionDenied},
		"administrator": {account: contract.AdminAccount, allowed: []string{"ConfigStoreService", "FleetService", "AccessService"},
			refusal: codes.PermissionDenied},
		"administrator by token": {token: admin, allowed: []string{"ConfigStoreService", "FleetService", "AccessService"},
			refusal: codes.PermissionDenied},
		"some workload":       {account: "default", refusal: codes.PermissionDenied},
		"token of a workload": {token: f.issuer.Token("apps", "client", contract.AdminAudience), refusal: codes.PermissionDenied},
		"token of wrong audience": {token: f.issuer.Token(contract.SystemNamespace, contract.AdminAccount, contract.TokenAudience),
			refusal: codes.Unauthenticated},
	}
	tried := 0
	for name, c := range callers {
		conn := r.dial(c.account)
		for svc, info := range r.grpc.GetServiceInfo() {
			if !strings.HasPrefix(svc, "fairlead.") {
				continue
			}
			for _, m := range info.Methods {
				tried++
				allowed := false
				for _, a := range c.allowed {
					allowed = allowed || strings.HasSuffix(svc, "."+a)
				}
				within := patience
				if allowed {
					within = 300 * time.Millisecond // a watch that is let in goes on and on
				}
				got := r.call(conn, "/"+svc+"/"+m.Name, c.token, within)
				if allowed && (got == codes.Unauthenticated || got == codes.PermissionDenied) || !allowed && got != c.refusal {
					t.Errorf("%s calls %s/%s: %s", name, svc, m.Name, got)
				}
			}
		}
	}
	if tried < 7*17 {
		t.Errorf("only %d calls tried", tried)
	}
}

// call sends one empty message to a method of any kind and returns how the call ended; OK if it was let in and goes on.
func (r *running) call(conn *grpc.ClientConn, method, token string, within time.Duration) codes.Code {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return status.Code(err)
	}
	if err := stream.SendMsg(&emptypb.Empty{}); err != nil && !errors.Is(err, io.EOF) {
		return status.Code(err)
	}
	_ = stream.CloseSend()
	return status.Code(stream.RecvMsg(&emptypb.Empty{}))
}

// TestEveryHTTPHandlerIsAuthenticated asks everything the ops server lists.
func TestEveryHTTPHandlerIsAuthenticated(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.WaitReady()
	admin := f.admin()
	open := map[string]bool{"/metrics": true, "/livez": true, "/readyz": true, "/readyz/sources": true}
	for _, h := range r.Ops.Handlers() {
		if h.Anonymous != open[h.Path] {
			t.Errorf("%s is anonymous: %v", h.Path, h.Anonymous)
		}
		if strings.Contains(h.Path, "pprof/profile") || strings.Contains(h.Path, "pprof/trace") {
			continue // take seconds once let in
		}
		for token, want := range map[string]int{"": http.StatusUnauthorized,
			f.issuer.Token("apps", "client", contract.AdminAudience): http.StatusForbidden, admin: http.StatusOK} {
			if h.Anonymous {
				want = http.StatusOK
			}
			code, _, err := r.Get(h.Path, token)
			if err != nil {
				t.Fatal(err)
			}
			if code != want {
				t.Errorf("%s with token %q: %d, want %d", h.Path, token[:min(len(token), 5)], code, want)
			}
		}
	}
}

func TestMetricsAreWellFormed(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.apply(shop)
	families, err := r.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var own []*dto.MetricFamily
	for _, family := range families {
		if strings.HasPrefix(family.GetName(), "fairlead_config_watcher_") {
			own = append(own, family)
		}
	}
	if len(own) < 15 {
		t.Errorf("only %d metrics", len(own))
	}
	problems, err := promlint.NewWithMetricFamilies(own).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// TestChangeIsTraced follows one trace from the call that writes to the revision.
func TestChangeIsTraced(t *testing.T) {
	f := newFixture(t)
	recorder, provider := testkit.Spans(t)
	r := f.start(f.options(), func(d *deps) { d.Tracer = provider })
	sub := r.subscribe(nil, nil)
	sub.until(r.apply(shop).Revision)
	testkit.Eventually(t, patience, func() error {
		var change, call string
		for _, s := range recorder.Ended() {
			switch {
			case s.Name() == "config change" && s.Parent().IsValid():
				change = s.SpanContext().TraceID().String()
			case strings.HasSuffix(s.Name(), "ConfigStoreService/Apply") && s.SpanKind() == trace.SpanKindServer:
				call = s.SpanContext().TraceID().String()
			}
		}
		if change == "" || call != change || !strings.Contains(sub.revision.TraceParent, change) {
			return fmt.Errorf("call in trace %q, change in %q, revision carries %q", call, change, sub.revision.TraceParent)
		}
		return nil
	})
}
