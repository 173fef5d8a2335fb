package install

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// forged is a Secret that a tenant with the right to write Secrets in his namespace makes look like an inventory.
func forged(t *testing.T, revision, record string) *corev1.Secret {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(record)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "tenant-a", Name: "fairlead-installation-" + revision,
			Labels: map[string]string{"install.fairlead.dev/inventory": "head", "install.fairlead.dev/revision": revision},
		},
		Type: "install.fairlead.dev/inventory", Data: map[string][]byte{"record": b.Bytes(), "sum": []byte(hex.EncodeToString(sum[:])),
			"chunks": []byte("1")},
	}
}

// A tenant's Secrets are no inventories: they stop no command, hold no revision and keep no object.
func TestForgedInventoriesCountForNothing(t *testing.T) {
	r := newRig(t)
	secrets, namespaces := r.Client(t).CoreV1().Secrets("tenant-a"), r.Client(t).CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant-a"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	before := contents(r.snapshot(t))
	entry := `{"version":"v1","kind":"ServiceAccount","namespace":"mesh","name":"reader"}`
	garbage := forged(t, "garbage", "")
	garbage.Data = map[string][]byte{"record": []byte("no gzip"), "sum": []byte("x"), "chunks": []byte("1")}
	for name, forgery := range map[string]*corev1.Secret{
		"garbage":           garbage,
		"the same revision": forged(t, "default", `{"revision":"default","namespace":"tenant-a","state":"installed","objects":[]}`),
		"a holder": forged(t, "default",
			`{"revision":"default","namespace":"tenant-a","state":"installed","holder":{"namespace":"istio-system","name":"mesh","lease":"a/b"},"objects":[]}`),
		"another's objects":  forged(t, "other", `{"revision":"other","namespace":"tenant-a","state":"installed","objects":[`+entry+`]}`),
		"a mesh's namespace": forged(t, "default", `{"revision":"default","namespace":"mesh","state":"installed","objects":[`+entry+`]}`),
		"escape sequences": forged(t, "default",
			`{"revision":"\u001b[2Jdefault","namespace":"tenant-a","state":"installed","profile":"\u001b[31mred","objects":[]}`),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := secrets.Create(t.Context(), forgery, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			_, said := r.install(t)
			says(t, said, "Secret tenant-a/"+forgery.Name+" looks like the inventory of an installation and is not taken for one")
			r.does(t, 0, "diff", "-d", r.manifests)
			_, said = r.does(t, 1, "verify-install") // no controller makes the Pods
			says(t, said, "fairlead: 1 problems")
			out, said := r.does(t, 0, "uninstall", "--revision", "default", "--dry-run")
			if !strings.Contains(out, "ServiceAccount mesh/reader") || strings.Contains(out+said, "\x1b") {
				t.Errorf("uninstall: %q, %q", out, said)
			}
			r.does(t, 0, "uninstall", "--purge", "--with-contents", "-y")
			if err := secrets.Delete(t.Context(), forgery.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if left := differing(contents(r.snapshot(t)), before); len(left) > 0 {
				t.Errorf("after uninstall --purge the cluster is not as before: %v", left)
			}
		})
	}
}
