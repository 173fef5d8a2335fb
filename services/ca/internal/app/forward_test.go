package app

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/catest"
)

const forwarderID = "spiffe://cluster.local/ns/istio-system/sa/xds-server"

// asAccount is the client certificate of a service account of the system namespace.
func (h *harness) asAccount(account string) *tls.Certificate {
	h.t.Helper()
	return h.mustCreate(as(h.t.Context(), h.token(contract.SystemNamespace, account)), h.dial(nil), 0).tls()
}

// forward sends a workload's request on.
func forward(t *testing.T, conn *grpc.ClientConn, token, identity string) ([]string, *ecdsa.PrivateKey, error) {
	t.Helper()
	key := catest.Key(t)
	res, err := cav1.NewForwardingServiceClient(conn).ForwardCertificateRequest(t.Context(), &cav1.ForwardCertificateRequestRequest{
		Token: token, Identity: identity, Csr: catest.CSR(t, key, &x509.CertificateRequest{}), Address: "10.1.2.3:4567",
	})
	return res.GetCertificateChain(), key, err
}

// TestForwardedRequestsAreTheTokensOwn: the certificate is the token's, and the audit line names both the workload and
// the server that forwarded its request.
func TestForwardedRequestsAreTheTokensOwn(t *testing.T) {
	h := start(t, nil)
	conn := h.dial(h.asAccount("xds-server"))
	chain, key, err := forward(t, conn, h.token("default", "reviews"), reviewsID)
	if err != nil {
		t.Fatal(err)
	}
	if got := uriOf(h.check(&security.IstioCertificateResponse{CertChain: chain}, key).leaf); got != reviewsID {
		t.Errorf("identity %q, want the token's, %q", got, reviewsID)
	}
	for _, want := range []string{`"caller":"` + reviewsID + `"`, `"via":"` + forwarderID + `"`, `"address":"10.1.2.3:4567"`,
		`"method":"jwt"`} {
		if !strings.Contains(h.log.String(), want) {
			t.Errorf("no %s in the audit log:\n%s", want, h.log)
		}
	}
}

// TestForwardingGivesNobodyMore goes through what a forwarding server, or somebody who is none, may try.
func TestForwardingGivesNobodyMore(t *testing.T) {
	h := start(t, nil)
	none := start(t, func(o *Options) { o.Forwarder = noForwarder })
	server := h.dial(h.asAccount("xds-server"))
	reviews := h.token("default", "reviews")
	workload := h.mustCreate(as(t.Context(), reviews), h.dial(nil), 0).tls()
	for name, tc := range map[string]struct {
		conn            *grpc.ClientConn
		token, identity string
		code            codes.Code
		// reason is that of the answer's ErrorInfo; "" if the answer is about the forwarding server.
		reason string
	}{
		"no token":        {server, "", forwarderID, codes.InvalidArgument, ""},
		"token of nobody": {server, "a.b.c", reviewsID, codes.Unauthenticated, "unauthenticated"},
		"token for another audience": {server, h.issuer.Token("default", "reviews", "vault"), reviewsID, codes.Unauthenticated,
			"unauthenticated"},
		"token of another than the workload": {server, reviews, "spiffe://cluster.local/ns/default/sa/ratings", codes.PermissionDenied,
			"foreign_identity"},
		"a workload forwards":      {h.dial(workload), reviews, reviewsID, codes.PermissionDenied, ""},
		"another service forwards": {h.dial(h.asAccount("config-watcher")), reviews, reviewsID, codes.PermissionDenied, ""},
		"nobody forwards":          {h.dial(nil), reviews, reviewsID, codes.Unauthenticated, ""},
		"a server where nobody may": {none.dial(none.asAccount("xds-server")), none.token("default", "reviews"), reviewsID,
			codes.PermissionDenied, ""},
		"its own identity by its own identity": {server, "", "", codes.InvalidArgument, ""},
	} {
		t.Run(name, func(t *testing.T) {
			chain, _, err := forward(t, tc.conn, tc.token, tc.identity)
			if status.Code(err) != tc.code || len(chain) > 0 {
				t.Errorf("got %v with %d certificates, want %v", err, len(chain), tc.code)
			}
			reason := ""
			for _, d := range status.Convert(err).Details() {
				if info, ok := d.(*errdetails.ErrorInfo); ok {
					reason = info.GetReason()
				}
			}
			if reason != tc.reason {
				t.Errorf("reason %q, want %q", reason, tc.reason)
			}
		})
	}
	if strings.Contains(h.log.String(), `"decision":"issued","caller":"`+forwarderID+`","method":"mtls"`) {
		t.Errorf("a certificate was issued to the forwarding server:\n%s", h.log)
	}
	byToken := as(t.Context(), h.token(contract.SystemNamespace, contract.XDSServerAccount))
	_, err := cav1.NewForwardingServiceClient(h.dial(nil)).ForwardCertificateRequest(byToken,
		&cav1.ForwardCertificateRequestRequest{Token: reviews, Identity: reviewsID, Csr: "x"})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("forwarded by a server that shows a token and no certificate: %v", err)
	}
}

func TestConfiguredIPAddresses(t *testing.T) {
	h := start(t, func(o *Options) {
		o.IPAddresses = []string{"istio-system/xds-server=127.66.0.13,127.66.0.12", "istio-system/xds-server=127.66.0.12,fd00::1"}
	})
	ctx, conn, key := as(t.Context(), h.token(contract.SystemNamespace, contract.XDSServerAccount)), h.dial(nil), catest.Key(t)
	leaf := h.mustCreate(ctx, conn, 0).leaf
	if got := len(leaf.IPAddresses); got != 3 || leaf.VerifyHostname("127.66.0.12") != nil || leaf.VerifyHostname("fd00::1") != nil {
		t.Errorf("addresses %v", leaf.IPAddresses)
	}
	if got := h.mustCreate(as(t.Context(), h.token("other", "xds-server")), conn, 0).leaf.IPAddresses; len(got) > 0 {
		t.Errorf("an account of the same name in another namespace got addresses %v", got)
	}
	for name, tc := range map[string]struct {
		ips  []net.IP
		want codes.Code
	}{
		"the configured ones": {[]net.IP{net.ParseIP("fd00::1"), net.ParseIP("127.66.0.13"), net.ParseIP("127.66.0.12")}, codes.OK},
		"some of them":        {[]net.IP{net.ParseIP("127.66.0.12")}, codes.PermissionDenied},
		"another":             {[]net.IP{net.ParseIP("127.66.0.99")}, codes.PermissionDenied},
	} {
		_, err := create(ctx, conn, &security.IstioCertificateRequest{Csr: catest.CSR(t, key, &x509.CertificateRequest{IPAddresses: tc.ips})})
		if status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	for _, rule := range []string{"istio-system/xds-server", "a/b=", "a/b=istiod.istio-system.svc", "a/b=127.0.0.1:15012", "a/b=0.0.0.0",
		"a/b=fe80::1%eth0", "a/b=224.0.0.1"} {
		o := h.options
		o.IPAddresses = []string{rule}
		if _, err := o.check(); err == nil || !strings.Contains(err.Error(), "--ip-addresses") {
			t.Errorf("%q: %v", rule, err)
		}
	}
}

func TestRefusedOptionsOfForwarding(t *testing.T) {
	h := start(t, func(o *Options) { o.Forwarder = "edge/proxy" })
	if got := h.server.cfg.forwarder.String(); got != "spiffe://cluster.local/ns/edge/sa/proxy" {
		t.Errorf("forwarder %s", got)
	}
	for flag, change := range map[string]func(*Options){
		"--forwarder":       func(o *Options) { o.Forwarder = "xds-server" },
		"--tls-min-version": func(o *Options) { o.TLSMinVersion = "1.1" },
	} {
		o := h.options
		change(&o)
		if _, err := o.check(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// Only the forwarding server may report what agents have acknowledged.
func TestReportsOfAgentsAreTheForwardersAlone(t *testing.T) {
	h := start(t, nil)
	none := start(t, func(o *Options) { o.Forwarder = noForwarder })
	for name, tc := range map[string]struct {
		h       *harness
		account string
		want    codes.Code
	}{
		"forwarder": {h, "xds-server", codes.InvalidArgument}, // what it reports is refused for its own sake
		"another":   {h, "config-watcher", codes.PermissionDenied},
		"none":      {none, "xds-server", codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := cav1.NewTrustServiceClient(tc.h.dial(tc.h.asAccount(tc.account))).WatchBundle(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			send(t, stream, "a", 0)
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&cav1.WatchBundleRequest{Agents: []*cav1.AgentAcknowledgement{{Generation: 99}}}); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); status.Code(err) != tc.want {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}
