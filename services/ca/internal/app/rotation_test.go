package app

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/catest"
)

// workload is one that knows roots from answers to its requests alone, as Istio's own agents do.
type workload struct {
	h     *harness
	roots *x509.CertPool
	cert  tls.Certificate
	// token is shown with each request, as a signer may want it; "" for one at first only.
	token string
}

// renew asks for a certificate, by the one that the workload has, or by a token at first.
func (w *workload) renew() {
	w.h.t.Helper()
	if err := w.tryRenew(); err != nil {
		w.h.t.Fatal(err)
	}
}

// tryRenew is renew for a ca that may refuse.
func (w *workload) tryRenew() error {
	t := w.h.t
	t.Helper()
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.roots, ServerName: "ca.istio-system.svc"}
	ctx := t.Context()
	if w.cert.PrivateKey != nil {
		cfg.Certificates = []tls.Certificate{w.cert}
	}
	if w.cert.PrivateKey == nil || w.token != "" {
		ctx = as(ctx, cmp.Or(w.token, w.h.token("default", "reviews")))
	}
	conn, err := grpc.NewClient(w.h.Address("grpc-address"), grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	key := catest.Key(t)
	res, err := create(ctx, conn, &security.IstioCertificateRequest{Csr: catest.CSR(t, key, &x509.CertificateRequest{})})
	if err != nil {
		return err
	}
	chain := res.GetCertChain()
	w.cert = tls.Certificate{PrivateKey: key}
	for _, text := range chain[:len(chain)-1] {
		w.cert.Certificate = append(w.cert.Certificate, parse(t, text).Raw)
	}
	w.roots = x509.NewCertPool()
	w.roots.AppendCertsFromPEM([]byte(chain[len(chain)-1]))
	return nil
}

// calls reports whether the workload and the ca have a connection with each other.
func (w *workload) calls() error {
	conn, err := tls.Dial("tcp", w.h.Address("grpc-address"), &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.roots,
		ServerName: "ca.istio-system.svc", Certificates: []tls.Certificate{w.cert}, NextProtos: []string{"h2"}})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1)) // the server's settings, or that it does not take the certificate
	return err
}

func (h *harness) status() caapi.Status {
	h.t.Helper()
	var s caapi.Status
	h.page(caapi.StatusPath, &s)
	return s
}

// order sends a command, and returns the HTTP status and what is wrong.
func (h *harness) order(c caapi.Command) (code int, problem string) {
	h.t.Helper()
	body := testkit.Must(json.Marshal(c))(h.t)
	req := testkit.Must(http.NewRequestWithContext(h.t.Context(), http.MethodPost,
		"http://"+h.Address("ops-address")+caapi.CommandPath, bytes.NewReader(body)))(h.t)
	req.Header.Set("Authorization", "Bearer "+h.issuer.Token(contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience))
	res := testkit.Must(http.DefaultClient.Do(req))(h.t)
	defer res.Body.Close()
	var answer struct {
		Error string `json:"error"`
	}
	testkit.NoError(h.t, json.Unmarshal(testkit.Must(io.ReadAll(res.Body))(h.t), &answer))
	return res.StatusCode, answer.Error
}

// reaches waits until the rotation waits at a step.
func (h *harness) reaches(step string, lagging int) caapi.Status {
	h.t.Helper()
	var last caapi.Status
	testkit.Eventually(h.t, testkit.Patience, func() error {
		last = h.status()
		if last.Step != step || last.Lagging.Total != lagging {
			return fmt.Errorf("step %s waits for %v and %d holders, want %s and %d", last.Step, last.Waits, last.Lagging.Total, step, lagging)
		}
		return nil
	})
	return last
}

func TestTheRootIsRotatedWhileAWorkloadRenews(t *testing.T) {
	h := start(t, nil)
	w := &workload{h: h, roots: h.roots()}
	w.renew()
	before := h.ownCertificate()
	if code, problem := h.order(caapi.Command{Action: caapi.Rotate, Reason: "test"}); code != http.StatusOK {
		t.Fatalf("%d: %s", code, problem)
	}
	s := h.reaches("gate", 1)
	if s.Lagging.First[0].Identity != reviewsID || len(s.Signers) != 2 || h.metric("fairlead_ca_rotation_waits", "holders") != 1 {
		t.Errorf("status %+v", s)
	}
	if code, problem := h.order(caapi.Command{Action: caapi.Rotate}); code != http.StatusConflict ||
		!strings.Contains(problem, "is under way") {
		t.Errorf("a second rotation: %d, %s", code, problem)
	}
	testkit.NoError(t, w.calls())
	w.renew()
	h.reaches("renew", 1)
	testkit.NoError(t, w.calls())
	w.renew()
	h.reaches("idle", 0)
	testkit.NoError(t, w.calls())
	if bundle, _ := h.server.publisher.Current(); len(bundle.Roots) != 1 {
		t.Errorf("%d roots at the end", len(bundle.Roots))
	}
	if now := h.ownCertificate(); bytes.Equal(now.AuthorityKeyId, before.AuthorityKeyId) {
		t.Error("the ca's own certificate is of the old root")
	}
	old := &workload{h: h, roots: x509.NewCertPool(), cert: w.cert}
	old.roots.AddCert(before)
	if err := old.calls(); err == nil {
		t.Error("a workload with the old root alone still takes the ca's certificate")
	}
}

// A ca of an earlier version has issued with the root of its directory, and kept no record of that.
func TestAMoveToASignerFileIsASwap(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	o := defaults(t, issuer)
	h := startWith(t, issuer, o)
	w := &workload{h: h, roots: h.roots()}
	w.renew()
	h.Stop()
	signerFile(t, &o)
	h = startWith(t, issuer, o)
	w.h = h
	testkit.NoError(t, w.calls())
	h.reaches("gate", 1)
	w.renew()
	h.reaches("renew", 1)
	w.renew()
	s := h.reaches("idle", 0)
	if s.Signers[0].Name != "disk" {
		t.Errorf("signers %+v", s.Signers)
	}
	testkit.NoError(t, w.calls())
}

func TestBadCommandsAreRefused(t *testing.T) {
	h := start(t, nil)
	for want, c := range map[int]caapi.Command{
		http.StatusBadRequest: {Action: caapi.Swap, File: "kind: Signer"}, http.StatusConflict: {Action: caapi.Abort},
	} {
		if code, problem := h.order(c); code != want || problem == "" {
			t.Errorf("%+v: %d %q, want %d", c, code, problem, want)
		}
	}
	if code, _, err := h.Get(caapi.CommandPath, ""); err != nil || code != http.StatusUnauthorized {
		t.Errorf("without a token: %d, %v", code, errors.Join(err))
	}
}
