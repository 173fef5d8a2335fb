package app_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	xdsv1 "fairlead.dev/proto/fairlead/xds/v1"
	"fairlead.dev/services/xds-server/internal/app"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestOnlyReplicasAskReplicas tries every method that replicas have for each other, on every port, with every kind of
// caller.
func TestOnlyReplicasAskReplicas(t *testing.T) {
	pki, issuer := testkit.PKI(t), testkit.NewIssuer(t)
	watcher := startWatcher(t, pki, bookMesh()...)
	server := startServer(t, pki, watcher.address, noop.NewTracerProvider(), func(o *app.Options) {
		o.JWKSFile, o.Issuer, o.PlaintextAddress = issuer.JWKSFile, issuer.Name, "127.0.0.1:0"
	})
	server.WaitReady()
	own := pki.ID(contract.SystemNamespace, contract.XDSServerAccount)
	certificate := func(namespace, account string) *tls.Config {
		return tlsconf.Client(pki.NewSVID(namespace, account), own)
	}
	anonymous := tlsconf.Client(pki.RootsOnly(), own)
	token := func(namespace, account string) string {
		return issuer.TokenFile(namespace, account, contract.TokenAudience)
	}
	var methods []string
	services := xdsv1.File_fairlead_xds_v1_replica_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			methods = append(methods, fmt.Sprintf("/%s/%s", services.Get(i).FullName(), services.Get(i).Methods().Get(j).Name()))
		}
	}
	if len(methods) == 0 {
		t.Fatal("no methods")
	}
	stranger := testkit.NewCA(t, "cluster.local", meshtest.Epoch)
	for name, tc := range map[string]struct {
		address string
		cfg     rpc.ClientConfig
		want    codes.Code
	}{
		"another replica": {server.secure, rpc.ClientConfig{TLS: certificate(contract.SystemNamespace, contract.XDSServerAccount)},
			codes.OK},
		"anonymous":  {server.secure, rpc.ClientConfig{TLS: anonymous}, codes.Unauthenticated},
		"a workload": {server.secure, rpc.ClientConfig{TLS: certificate("default", "default")}, codes.PermissionDenied},
		"a workload by token": {server.secure, rpc.ClientConfig{TLS: anonymous, TokenFile: token("default", "default")},
			codes.PermissionDenied},
		"config-watcher": {server.secure,
			rpc.ClientConfig{TLS: certificate(contract.SystemNamespace, contract.ConfigWatcherAccount)}, codes.PermissionDenied},
		"the administrator": {server.secure, rpc.ClientConfig{TLS: certificate(contract.SystemNamespace, contract.AdminAccount)},
			codes.PermissionDenied},
		"the same account elsewhere": {server.secure, rpc.ClientConfig{TLS: certificate("default", "xds-server")}, codes.PermissionDenied},
		"the same name of a stranger": {server.secure,
			rpc.ClientConfig{TLS: tlsconf.Client(stranger.NewSVID(contract.SystemNamespace, contract.XDSServerAccount), own)}, codes.Unavailable},
		"without TLS on the secure port": {server.secure, rpc.ClientConfig{Insecure: true}, codes.Unavailable},
		"anyone on the plaintext port":   {server.plaintext, rpc.ClientConfig{Insecure: true}, codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, tc.address, tc.cfg)
			for _, method := range append([]string{"/fairlead.xds.v1.ReplicaService/NoSuchMethod"}, methods...) {
				want := tc.want
				if want == codes.OK && method != methods[0] {
					want = codes.Unimplemented
				}
				if got := call(t, conn, method); got != want {
					t.Errorf("%s: %v, want %v", method, got, want)
				}
			}
		})
	}
}

// call sends one empty message to a method of any kind.
func call(t *testing.T, conn *grpc.ClientConn, method string) codes.Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return status.Code(err)
	}
	if err := stream.SendMsg(&emptypb.Empty{}); err != nil && !errors.Is(err, io.EOF) {
		return status.Code(err)
	}
	_ = stream.CloseSend() // an error is RecvMsg's too
	return status.Code(stream.RecvMsg(&emptypb.Empty{}))
}

// Replicas that know of each other by --peers find each other over mutual TLS, whichever starts first; one without
// configuration does not count.
func TestReplicasFindEachOther(t *testing.T) {
	pki := testkit.PKI(t)
	watcher := startWatcher(t, pki, bookMesh()...)
	// The list must be known before the servers start.
	var addresses []string
	for range 3 {
		addresses = append(addresses, testkit.FreeAddress(t).String())
	}
	begin := func(i int, watcher string) *instance {
		return startServer(t, pki, watcher, noop.NewTracerProvider(), func(o *app.Options) {
			o.SecureAddress, o.Instance, o.Peers, o.RebalancePeriod = addresses[i], fmt.Sprint("xds-server-", i), addresses, time.Second
		})
	}
	first := begin(0, watcher.address)
	begin(1, watcher.address)
	conn := dial(t, addresses[1], rpc.ClientConfig{TLS: tlsconf.Client(pki.NewSVID(contract.SystemNamespace, contract.XDSServerAccount),
		pki.ID(contract.SystemNamespace, contract.XDSServerAccount))})
	first.balanced(t, 2)
	load, err := xdsv1.NewReplicaServiceClient(conn).GetLoad(t.Context(), &xdsv1.GetLoadRequest{})
	if err != nil || !load.GetReady() || load.GetStreams() != 0 {
		t.Errorf("%v %v", load, err)
	}
	unready := begin(2, "127.0.0.1:1")
	first.balanced(t, 2)
	unready.balanced(t, 3) // it has asked twice, so it was asked about as often
	first.balanced(t, 2)
}

// balanced waits until a replica counts so many.
func (i *instance) balanced(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		_, metrics := i.get(t, "/metrics", "")
		if line := fmt.Sprintf("\nfairlead_xds_server_balanced_replicas %d\n", want); !strings.Contains(metrics, line) {
			return fmt.Errorf("no %q in %s", line, metrics)
		}
		return nil
	})
}
