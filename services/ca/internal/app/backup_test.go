package app

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/kube"
)

// The record of several replicas is in a Secret, and so is what is restored.
func TestABackupHasTheRecordOfTheStateSecret(t *testing.T) {
	o := defaults(t, testkit.NewIssuer(t))
	h := start(t, nil) // for the directory that a replica has
	o.Dir, o.Kubernetes, o.StateSecret, o.SignerFile = h.options.Dir, true, "mesh/ca-state", ""
	const text = `{"epoch":1,"lastID":1,"current":{"id":1,"name":"other","spec":{}},"step":"idle"}`
	api := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "mesh", Name: "ca-state"},
		Data: map[string][]byte{"state.json": []byte(text)}})
	in := func() (*kube.Cluster, error) { return &kube.Cluster{API: api}, nil }
	if _, err := backUp(t.Context(), &o, in); err == nil {
		t.Error("a state in a Secret without a signer file was taken")
	}
	o.SignerFile = t.TempDir() + "/signer.yaml"
	testkit.WriteFile(t, o.SignerFile, []byte("kind: Signer\n"))
	archive, err := backUp(t.Context(), &o, in)
	if err != nil {
		t.Fatal(err)
	}
	if string(archive.Record) != text || archive.In.String() != "mesh/ca-state" || archive.SignerFile != "kind: Signer\n" {
		t.Errorf("record %s of %s, signer file %q", archive.Record, archive.In, archive.SignerFile)
	}
}
