package backup

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/cabackup"
	"fairlead.dev/proto/fairlead/trust"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kinds"
	"fairlead.dev/services/ca/internal/store"
)

const trustDomain = "cluster.local"

var caID = spiffeid.RequireFromString("spiffe://cluster.local/ns/istio-system/sa/ca")

// document is the record: the state, and the bundle that was published last.
type document struct {
	rotation.State
	Bundle struct {
		Generation uint64   `json:"generation"`
		Roots      []string `json:"roots"`
	} `json:"bundle"`
}

// ca is a ca with a directory, a record and a signer, as package app puts them together.
type ca struct {
	dir    string
	api    kubernetes.Interface
	record *record.File
	state  document
	signer *kinds.Opened
}

func (c *ca) sources() Sources {
	return Sources{Dir: c.dir, TrustDomain: trustDomain, Record: c.record, API: c.api, Now: time.Now()}
}

func spec(t *testing.T, keys string) *kinds.Spec {
	t.Helper()
	s, err := kinds.Parse(fmt.Appendf(nil, `apiVersion: ca.fairlead.dev/v1
kind: Signer
name: disk
intermediate:
  keys: {%s}
  ttl: 240h
  selfSigned: {ttl: 8760h}
`, keys))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (c *ca) env() kinds.Env {
	return kinds.Env{Deps: signer.Deps{TrustDomain: caID.TrustDomain(), Clock: clock.Real()}, Identity: caID, LeafTTL: 24 * time.Hour,
		API: c.api}
}

// rootOf is the root of a ca without a signer file, which this one has had before.
func rootOf(dir string) store.Config {
	return store.Config{Dir: dir, TrustDomain: caID.TrustDomain(), RootTTL: time.Hour, Now: time.Now()}
}

// newCA starts a ca for the first time. Its keys are where keys says, in which DIR stands for its directory.
func newCA(t *testing.T, dir, keys string, api kubernetes.Interface) *ca {
	t.Helper()
	c := &ca{dir: dir, api: api, record: record.NewFile(filepath.Join(dir, StateFile), nil)}
	if _, err := store.Open(t.Context(), rootOf(dir)); err != nil {
		t.Fatal(err)
	}
	s := spec(t, strings.ReplaceAll(keys, "DIR", dir))
	var err error
	if c.signer, err = kinds.Open(s, 1, c.env()); err != nil {
		t.Fatal(err)
	}
	kept, err := c.signer.Prepare(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.signer.Adopt(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	c.state.State = rotation.First(rotation.Signer{ID: 1, Name: s.Name, Spec: testkit.Must(json.Marshal(s))(t), Kept: kept}, time.Now())
	authorities, _ := c.signer.Guard.Authorities()
	for _, root := range authorities.Roots {
		c.state.Current.Roots = append(c.state.Current.Roots, tlsconf.EncodeCertificate(root))
	}
	c.publish(t, 3)
	return c
}

// publish writes the record with a bundle.
func (c *ca) publish(t *testing.T, generation uint64) {
	t.Helper()
	version := ""
	if now, err := c.record.Load(t.Context()); err == nil {
		version = now.Version
	}
	c.state.Bundle.Generation, c.state.Bundle.Roots = generation, c.state.Roots()
	if _, err := c.record.Save(t.Context(), testkit.Must(json.Marshal(c.state))(t), version); err != nil {
		t.Fatal(err)
	}
}

// start starts a ca that has a record.
func start(t *testing.T, dir string, api kubernetes.Interface) *ca {
	t.Helper()
	c := &ca{dir: dir, api: api, record: record.NewFile(filepath.Join(dir, StateFile), nil)}
	r, err := c.record.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(r.Data, &c.state); err != nil {
		t.Fatal(err)
	}
	var s kinds.Spec
	if err := json.Unmarshal(c.state.Current.Spec, &s); err != nil {
		t.Fatal(err)
	}
	if c.signer, err = kinds.Open(&s, c.state.Current.ID, c.env()); err != nil {
		t.Fatal(err)
	}
	if err := c.signer.Adopt(t.Context(), c.state.Current.Kept); err != nil {
		t.Fatal(err)
	}
	return c
}

// leaf issues a certificate.
func (c *ca) leaf(t *testing.T, id spiffeid.ID) *tls.Certificate {
	t.Helper()
	key := catest.Key(t)
	chain, err := c.signer.Guard.Signer().Issue(t.Context(), &signer.Request{Identity: id, Template: &x509.Certificate{
		PublicKey: key.Public(), URIs: []*url.URL{id.URL()}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	out := &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, cert := range chain {
		out.Certificate = append(out.Certificate, cert.Raw)
	}
	return out
}

// bundle is that of the ca's record, signed.
func (c *ca) bundle(t *testing.T) *cav1.SignedBundle {
	t.Helper()
	b := &cav1.TrustBundle{TrustDomain: trustDomain, Epoch: c.state.Epoch, Generation: c.state.Bundle.Generation}
	for _, root := range c.state.Bundle.Roots {
		block, _ := pem.Decode([]byte(root))
		b.RootCertificates = append(b.RootCertificates, block.Bytes)
	}
	return testkit.Must(trust.Sign(b, c.leaf(t, caID)))(t)
}

// agent verifies with the roots of a bundle that it has adopted.
type agent struct{ trust.Receiver }

func (a *agent) adopt(s *cav1.SignedBundle) error {
	a.Now, a.CAs, a.TrustDomain = time.Now(), []string{caID.String()}, trustDomain
	got, err := a.Verify(s)
	if err == nil {
		a.Roots, a.Epoch, a.Generation = catest.Pool(got.Roots...), got.GetEpoch(), got.GetGeneration()
	}
	return err
}

func (a *agent) verify(t *testing.T, cert *tls.Certificate) {
	t.Helper()
	intermediates := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		intermediates.AddCert(testkit.Must(x509.ParseCertificate(der))(t))
	}
	if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: a.Roots, Intermediates: intermediates}); err != nil {
		t.Errorf("a certificate does not verify: %v", err)
	}
}

// sealed makes a backup and opens it again, as the file of another machine.
func sealed(t *testing.T, s Sources) *cabackup.Archive {
	t.Helper()
	id := testkit.Must(age.GenerateX25519Identity())(t)
	a, err := Collect(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Must(cabackup.Open(testkit.Must(cabackup.Seal(a, id.Recipient()))(t), id))(t)
}

var workload = spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/web")

// TestDrill loses a ca and brings it back on a new machine, with agents that have seen bundles from after the backup.
func TestDrill(t *testing.T) {
	for name, keys := range map[string]string{
		"keys in --ca-dir":          "directory: {dir: DIR/keys}",
		"keys in another directory": "directory: {dir: DIR-keys}",
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "ca")
			lost := newCA(t, dir, keys, nil)
			// The file of --root-cert-out may be there too, for everybody.
			if err := os.WriteFile(filepath.Join(dir, "bundle.pem"), []byte("roots"), 0o644); err != nil { //nolint:gosec // see above
				t.Fatal(err)
			}
			archive := sealed(t, lost.sources())
			if slices.ContainsFunc(archive.Files, func(f cabackup.File) bool { return f.Path == "bundle.pem" }) {
				t.Error("a file for everybody is in the archive")
			}

			lost.publish(t, 5) // after the backup
			proxy := &agent{trust.Receiver{Roots: catest.Pool()}}
			for _, root := range lost.state.Bundle.Roots {
				proxy.Roots.AppendCertsFromPEM([]byte(root))
			}
			before := lost.leaf(t, workload)
			if err := proxy.adopt(lost.bundle(t)); err != nil {
				t.Fatal(err)
			}
			for _, gone := range []string{dir, dir + "-keys"} {
				if err := os.RemoveAll(gone); err != nil {
					t.Fatal(err)
				}
			}

			target := Target{Dir: dir, TrustDomain: trustDomain, KeyDirs: []string{dir + "-keys"}}
			if err := Restore(t.Context(), archive, target); err != nil {
				t.Fatal(err)
			}
			back := start(t, dir, nil)
			if back.state.Epoch != 1 || back.state.Bundle.Generation != 3 {
				t.Errorf("back with bundle %d of epoch %d", back.state.Bundle.Generation, back.state.Epoch)
			}
			old := lost.bundle(t)
			if err := proxy.adopt(back.bundle(t)); err != nil {
				t.Fatalf("agents refuse the bundle of the restored ca: %v", err)
			}
			proxy.verify(t, before)
			proxy.verify(t, back.leaf(t, workload))
			if err := proxy.adopt(old); err == nil || !strings.Contains(err.Error(), "is older than") {
				t.Errorf("a bundle from before was taken for a later one: %v", err)
			}
			if _, err := store.Open(t.Context(), rootOf(dir)); err != nil {
				t.Errorf("the root of --ca-dir: %v", err)
			}
			wantModes(t, dir)
		})
	}
}

func wantModes(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestKeysInASecretAreInTheArchive(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	api := fake.NewClientset()
	c := newCA(t, dir, "secret: {namespace: mesh, name: keys}", api)
	archive := sealed(t, c.sources())
	if len(archive.Secrets) != 1 || archive.Secrets[0].String() != "mesh/keys" || len(archive.Secrets[0].Data) != 2 {
		t.Errorf("Secrets %+v", archive.Secrets)
	}
	outside := c.sources()
	outside.API = nil
	if _, err := Collect(t.Context(), outside); err == nil || !strings.Contains(err.Error(), "add --kubernetes") {
		t.Errorf("without Kubernetes: %v", err)
	}
	if err := api.CoreV1().Secrets("mesh").Delete(t.Context(), "keys", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Collect(t.Context(), c.sources()); err == nil {
		t.Error("a backup without keys was made")
	}
}

// A ca that renews or rotates while it is backed up has new keys, which the record names.
func TestARecordThatChangesIsReadAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	c := newCA(t, dir, "directory: {dir: DIR/keys}", nil)
	changing := &changingStore{File: c.record, then: func() { c.publish(t, 4) }}
	s := c.sources()
	s.Record = changing
	a, err := Collect(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if r := testkit.Must(cabackup.ParseRecord(a.Record))(t); r.Bundle.Generation != 4 || changing.loads != 4 {
		t.Errorf("bundle %d after %d readings", r.Bundle.Generation, changing.loads)
	}
}

func TestAKeyThatOthersCanReadIsToldAndNotLeftOut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	c := newCA(t, dir, "directory: {dir: DIR/keys}", nil)
	if err := os.Chmod(filepath.Join(dir, "keys", "signer-1-root.pem"), 0o644); err != nil { //nolint:gosec // the fault
		t.Fatal(err)
	}
	if _, err := Collect(t.Context(), c.sources()); err == nil || !strings.Contains(err.Error(), "chmod 0600") {
		t.Errorf("got %v", err)
	}
}

// A ca without a signer file has its roots in --ca-dir, each in a folder of its signer's number.
func TestRootsOfRotationsAreNeeded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	c := newCA(t, dir, "directory: {dir: DIR/keys}", nil)
	built := testkit.Must(json.Marshal(kinds.BuiltInSpec(time.Hour)))(t)
	c.state.Old = []rotation.Signer{{ID: 1, Name: "self-signed", Spec: built, Roots: []string{"root 1"}}}
	c.state.Current, c.state.LastID = rotation.Signer{ID: 2, Name: "self-signed", Spec: built, Roots: []string{"root 2"}}, 2
	c.publish(t, 4)
	if _, err := Collect(t.Context(), c.sources()); err == nil || !strings.Contains(err.Error(), "signer-2/root/key.pem") {
		t.Errorf("without the root of signer 2: %v", err)
	}
	root := rootOf(filepath.Join(dir, "signer-2"))
	if _, err := store.Open(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	archive := sealed(t, c.sources())
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := Restore(t.Context(), archive, Target{Dir: dir, TrustDomain: trustDomain}); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []store.Config{rootOf(dir), root} {
		if opened, err := store.Open(t.Context(), cfg); err != nil || opened.Created {
			t.Errorf("%s: made anew, or %v", cfg.Dir, err)
		}
	}
}

// changingStore changes its record after it was read for the first time.
type changingStore struct {
	*record.File
	then  func()
	loads int
}

func (s *changingStore) Load(ctx context.Context) (record.Record, error) {
	r, err := s.File.Load(ctx)
	if s.loads++; s.loads == 1 {
		s.then()
	}
	return r, err
}
