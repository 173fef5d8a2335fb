// Command secondca is a second implementation of what the services and agents of a mesh ask the ca for, written from
// the contract alone: fairlead.ca.v1, Istio's CreateCertificate, and the files that the ca writes. It shares no code
// with the ca. Tests put it into the ca's place, so that the contract is what it seems (`make scenarios CA=second`).
//
// It has the flags of the ca that tests use, one root that signs leaves, and no limits: it is for tests alone.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	security "istio.io/api/security/v1alpha1"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// options are the flags.
type options struct {
	grpc, ops, dir, rootOut, domain, issuer, keys string
	dns, ips                                      names
}

// names are those in the certificates of workloads, by namespace/service-account.
type names map[string][]string

// String implements flag.Value.
func (n names) String() string { return fmt.Sprint(map[string][]string(n)) }

// Set implements flag.Value.
func (n names) Set(text string) error {
	who, list, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("want namespace/service-account=name,name")
	}
	n[who] = append(n[who], strings.Split(list, ",")...)
	return nil
}

func main() {
	o := options{dns: names{}, ips: names{}}
	flag.StringVar(&o.grpc, "grpc-address", ":15012", "address of the gRPC port")
	flag.StringVar(&o.ops, "ops-address", ":15014", "address of /readyz")
	flag.StringVar(&o.dir, "ca-dir", "", "directory of the root")
	flag.StringVar(&o.rootOut, "root-cert-out", "", "file of the trust bundle")
	flag.StringVar(&o.domain, "trust-domain", "cluster.local", "trust domain")
	flag.StringVar(&o.issuer, "issuer", "", "issuer of tokens")
	flag.StringVar(&o.keys, "jwks-file", "", "keys of tokens")
	flag.Var(o.dns, "dns-names", "namespace/service-account=name,name")
	flag.Var(o.ips, "ip-addresses", "namespace/service-account=ip,ip")
	for _, name := range []string{"admin-jwks-file", "log-level"} {
		flag.String(name, "", "has no effect")
	}
	flag.Parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := run(o, log); err != nil {
		log.Error("the second ca ends", "error", err)
		os.Exit(1)
	}
}

func run(o options, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	a, err := openAuthority(o)
	if err != nil {
		return err
	}
	lis, err := net.Listen("tcp", o.grpc)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: a.pool,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.own() },
	})))
	s := &service{authority: a, log: log}
	security.RegisterIstioCertificateServiceServer(server, s)
	cav1.RegisterForwardingServiceServer(server, s)
	cav1.RegisterTrustServiceServer(server, s)
	// The bundle is there before anybody can ask for a certificate.
	if err := replace(o.rootOut, a.rootPEM(), 0o644); err != nil {
		return err
	}
	ok := func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode("ready") }
	pages := http.NewServeMux()
	pages.HandleFunc("/readyz", ok)
	pages.HandleFunc("/livez", ok)
	ops := &http.Server{Addr: o.ops, Handler: pages, ReadHeaderTimeout: time.Second}
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(lis) }()
	go func() { ended <- ops.ListenAndServe() }()
	log.Info("the second ca serves", "address", o.grpc)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		server.Stop()
		return ops.Close()
	}
}

// replace writes a file in one step.
func replace(path string, content []byte, mode os.FileMode) error {
	if err := os.WriteFile(path+".new", content, mode); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
