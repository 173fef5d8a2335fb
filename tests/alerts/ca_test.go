package alerts

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/controlplane"
)

func TestFaultsOfTheCA(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	extra := filepath.Join(t.TempDir(), "extra.pem")
	write := func(t *testing.T, content []byte) {
		t.Helper()
		if err := os.WriteFile(extra, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root := testkit.PKI(t).RootPEM
	write(t, root)
	p := plane(t, "--log-level", "warn")
	clusters := filepath.Join(t.TempDir(), "clusters.json")
	p.CA.Add("--extra-roots-file", extra, "--remote-clusters-file", clusters)
	if err := p.StartCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.add("ca", "ca-0", p.CA.Ops)
	workload := byToken(t, p, p.CA.GRPC, "default", "client")
	certificate(t, workload) // its trust is established

	l.strangers("ca", p.CA.GRPC, func(t *testing.T) *grpc.ClientConn {
		return byToken(t, p, p.CA.GRPC, "default", "client")
	}, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := cav1.NewForwardingServiceClient(conn).ForwardCertificateRequest(ctx, &cav1.ForwardCertificateRequestRequest{})
		return err
	})
	l.provoke(fault{service: "ca", alerts: []string{"RemoteClustersProblem"}, make_: func(t *testing.T) func() {
		testkit.WriteFile(t, clusters, []byte(`{"clusters": [{"cluster": "east"`))
		return func() { testkit.WriteFile(t, clusters, []byte(`{"clusters": []}`)) }
	}, until: func(s scrape) bool { return s.sum("fairlead_ca_remote_clusters_problem") > 0 }})
	l.provoke(fault{service: "ca", alerts: []string{"CaRefusesMany"}, make_: func(t *testing.T) func() {
		often(t, 1600, func(ctx context.Context) error {
			if _, err := (controlplane.Request{PEM: "no request"}).Send(ctx, workload, 0); err == nil {
				return errors.New("the ca signed what is no request")
			}
			return nil
		})
		return nil
	}})

	dial := func(t *testing.T) *grpc.ClientConn {
		return byCertificate(t, p, p.CA.GRPC, contract.SystemNamespace, contract.XDSServerAccount)
	}
	watch := func(t *testing.T, conn *grpc.ClientConn) cav1.TrustService_WatchBundleClient {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		t.Cleanup(cancel)
		stream, err := cav1.NewTrustServiceClient(conn).WatchBundle(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&cav1.WatchBundleRequest{Subscriber: "test"}); err != nil && !errors.Is(err, io.EOF) { // it may be refused already
			t.Fatal(err)
		}
		return stream
	}
	l.provoke(fault{service: "ca", alerts: []string{"WatchesRefused"}, make_: func(t *testing.T) func() {
		// A connection carries 32 calls at once; together they are more watches than the ca has room for.
		for range 48 {
			conn := dial(t)
			for range 32 {
				watch(t, conn)
			}
		}
		return nil
	}, until: func(s scrape) bool { return s.sum("fairlead_ca_bundle_watches_refused_total") > 0 }, minutes: 5})
	l.provoke(fault{service: "ca", alerts: []string{"TrustNotTaken"}, make_: func(t *testing.T) func() {
		if _, err := watch(t, dial(t)).Recv(); err != nil {
			t.Fatal(err)
		}
		return nil
	}, until: func(s scrape) bool { return s.sum("fairlead_ca_bundle_watches_behind") > 0 }, minutes: 12})
	l.provoke(fault{service: "ca", alerts: []string{"BundleProblem"}, make_: func(t *testing.T) func() {
		write(t, []byte("-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n"))
		return func() { write(t, root) }
	}, until: func(s scrape) bool { return s.sum("fairlead_ca_bundle_problem") > 0 }})

	request := testkit.Must(controlplane.NewRequest())(t)
	burns := []string{"CaSlow", "CaBudgetBurnsFast", "CaBudgetBurnsSlow", "CaBudgetBurnsSteady", "CaBudgetBurnsCreeping"}
	l.provoke(fault{service: "ca", alerts: burns, minutes: 70, gap: time.Millisecond, make_: func(t *testing.T) func() {
		halting(t, p.CA.Process(), time.Millisecond, func(ctx context.Context) error {
			conn := byToken(t, p, p.CA.GRPC, "default", "client")
			for ctx.Err() == nil {
				if _, err := request.Send(ctx, conn, 0); err != nil && ctx.Err() == nil && status.Code(err) != codes.ResourceExhausted {
					return err
				}
			}
			return nil
		}, func() bool {
			s := l.look(t.Context())
			n := s.sum("fairlead_ca_request_duration_seconds_count", `decision="issued"`)
			return n-s.sum("fairlead_ca_request_duration_seconds_bucket", `decision="issued"`, `le="1"`) > 0.03*n
		})
		return nil
	}})

	old := plane(t)
	old.CA.Add("--root-ttl", "120h")
	if err := old.StartCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.targets = nil
	signerFaults(t, l)
	l.targets = nil
	expiring := []string{"RootExpires", "AuthorityExpires", "AuthorityExpiresSoon"}
	l.provoke(fault{service: "ca", alerts: expiring, afresh: true, make_: func(*testing.T) func() {
		l.add("ca", "ca-1", old.CA.Ops)
		return nil
	}})

	l.add("ca", "ca-0", p.CA.Ops)
	l.provoke(fault{service: "ca", alerts: []string{"CaReplicaDown"}, minutes: 12, make_: func(*testing.T) func() {
		old.CA.Kill()
		return nil
	}})
	l.targets = nil
	l.add("ca", "ca-0", p.CA.Ops)
	l.provoke(fault{service: "ca", alerts: []string{"CaDown"}, make_: func(*testing.T) func() { p.CA.Kill(); return nil }, minutes: 7})
}
