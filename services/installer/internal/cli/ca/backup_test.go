package ca

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/cabackup"
	"fairlead.dev/services/installer/internal/cabackups"
	"fairlead.dev/services/installer/internal/cli/meshflags"
)

func archive(namespace string) *cabackup.Archive {
	return &cabackup.Archive{Program: "1", TrustDomain: "cluster.local", In: cabackup.Place{Namespace: namespace, Name: "ca-state"},
		Record:     json.RawMessage(`{"epoch":4,"lastID":1,"current":{"id":1,"name":"disk"},"step":"gate","bundle":{"generation":7}}`),
		Elsewhere:  []string{"signer disk: its keys are in a token"},
		SignerFile: "kind: Signer\n",
		Secrets: []cabackup.Secret{{Place: cabackup.Place{Namespace: namespace, Name: "ca-keys"},
			Data: map[string][]byte{"signer-1-root.pem": []byte("key")}}}}
}

func execute(t *testing.T, cmd *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func identity(t *testing.T) (*age.X25519Identity, string) {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.txt")
	testkit.WriteFile(t, file, []byte("# a key\n"+id.String()+"\n"))
	return id, file
}

// A program plays the ca of this machine.
func TestBackupOnThisMachine(t *testing.T) {
	id, _ := identity(t)
	dir := t.TempDir()
	a := archive("mesh")
	sealed, err := cabackup.Seal(a, id.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	answer, err := json.Marshal(cabackup.Sealed{Summary: a.Summary(), Archive: sealed})
	if err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, filepath.Join(dir, "answer"), answer)
	program := filepath.Join(dir, "ca")
	testkit.WriteFile(t, program, fmt.Appendf(nil, `#!/bin/sh
echo "$@" > %[1]s/asked
test $2 != --fail || { echo it is broken >&2; exit 1; }
cat %[1]s/answer
`, dir))
	if err := os.Chmod(program, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	got, err := cabackups.Make(t.Context(), onThisMachine(program, []string{"backup", "--ca-dir", "/x"}), []string{"age1abc"})
	if err != nil {
		t.Fatal(err)
	}
	asked, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil || string(asked) != "backup --ca-dir /x --summary --recipient=age1abc\n" {
		t.Errorf("asked %q, %v", asked, err)
	}
	var out bytes.Buffer
	if err := tell(&out, got.Summary, "Backup"); err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"signer disk, bundle 7 of epoch 4", "Secret mesh/ca-state, Secret mesh/ca-keys", "at step gate",
		"not in the backup: signer disk: its keys are in a token"} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("%q lacks %q", out.String(), says)
		}
	}
	broken := onThisMachine(program, []string{"backup", "--fail"})
	if _, err := broken(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "it is broken") {
		t.Errorf("got %v", err)
	}
}

func TestBackupIsForSomebody(t *testing.T) {
	id, _ := identity(t)
	dir := t.TempDir()
	file, phrase := filepath.Join(dir, "recipients"), filepath.Join(dir, "phrase")
	testkit.WriteFile(t, file, []byte("# us\n\n"+id.Recipient().String()+"\n"))
	testkit.WriteFile(t, phrase, []byte("correct horse battery\n"))
	for says, f := range map[string]backupFlags{
		"never plain":                {},
		"--passphrase-file excludes": {passphraseFile: phrase, recipientsFile: file},
		"--recipients-file: ":        {recipientsFile: filepath.Join(dir, "none")},
		"recipients of the backup":   {recipients: []string{"ssh-rsa A"}},
	} {
		if _, _, err := f.to(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", f, err, says)
		}
	}
	if _, err := execute(t, backupCommand(&meshflags.Flags{}), "--recipient", id.Recipient().String()); err == nil ||
		!strings.Contains(err.Error(), "-o is required") {
		t.Errorf("without a file: %v", err)
	}
	f := backupFlags{recipientsFile: file, recipients: []string{id.Recipient().String()}}
	if to, passphrase, err := f.to(); err != nil || len(to) != 2 || passphrase != nil {
		t.Errorf("%v, %v, %v", to, passphrase, err)
	}
	f = backupFlags{passphraseFile: phrase}
	if to, passphrase, err := f.to(); err != nil || len(to) != 0 || passphrase == nil {
		t.Errorf("%v, %v, %v", to, passphrase, err)
	}
}

func TestShow(t *testing.T) {
	id, key := identity(t)
	_, other := identity(t)
	dir := t.TempDir()
	sealed, err := cabackup.Seal(archive("mesh"), id.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	file, out := filepath.Join(dir, "ca.age"), filepath.Join(dir, "signer.yaml")
	testkit.WriteFile(t, file, sealed)
	if text, err := execute(t, restoreCommand(), file, "--identity-file", key, "--show", "--signer-file-out", out); err != nil ||
		!strings.Contains(text, "bundle 7 of epoch 4") {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := os.ReadFile(out); err != nil || string(text) != "kind: Signer\n" {
		t.Errorf("signer file %q, %v", text, err)
	}
	for says, args := range map[string][]string{
		"with this key or passphrase": {file, "--identity-file", other, "--show"},
		"is required":                 {file, "--show"},
		"no file with private keys":   {file, "--identity-file", file, "--show"},
		"had no such file":            {file, "--identity-file", key, "--show", "--extra-roots-out", out},
	} {
		if _, err := execute(t, restoreCommand(), args...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %q", args, err, says)
		}
	}
}

// kubeconfigVariable names the file of an administrator of an API server in which the test may make a namespace.
const kubeconfigVariable = "CA_TEST_KUBECONFIG"

func TestRealAPIServer(t *testing.T) {
	kubeconfig := os.Getenv(kubeconfigVariable)
	if kubeconfig == "" {
		t.Skipf("%s names no kubeconfig: run `make test-kube`, whose test TestRestoredSecrets sets it", kubeconfigVariable)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := fmt.Sprintf("restore-%d", time.Now().UnixNano())
	id, key := identity(t)
	sealed, err := cabackup.Seal(archive(namespace), id.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.age")
	testkit.WriteFile(t, file, sealed)
	restore := func(more ...string) (string, error) {
		return execute(t, restoreCommand(),
			append([]string{file, "--identity-file", key, "--kubeconfig", kubeconfig, "-i", namespace}, more...)...)
	}
	if _, err := restore(); err == nil || !strings.Contains(err.Error(), namespace) {
		t.Errorf("without the namespace: %v", err)
	}
	if _, err := api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "ca-0", Labels: map[string]string{"app": "ca"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "ca", Image: "x"}}}}
	if _, err := api.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := restore("--force"); err == nil || !strings.Contains(err.Error(), "scale it to 0 first") {
		t.Errorf("beside a ca: %v", err)
	}
	if err := api.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	for i, more := range [][]string{nil, {"--force"}} {
		if text, err := restore(more...); err != nil || !strings.Contains(text, "Secret "+namespace+"/ca-keys") {
			t.Fatalf("%q, %v", text, err)
		}
		state, err := api.CoreV1().Secrets(namespace).Get(t.Context(), "ca-state", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := cabackup.ParseRecord(state.Data["state.json"]); err != nil || r.Epoch != uint64(5+i) {
			t.Errorf("record %+v, %v", r, err)
		}
		if _, err := restore(); err == nil || !strings.Contains(err.Error(), "there is a ca already") {
			t.Errorf("again: %v", err)
		}
	}
}
