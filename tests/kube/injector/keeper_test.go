package injector

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// The processes that others can talk to may change no webhook configuration: with one, a thief of their token would see
// and change whatever he lists in its rules.
func TestAStolenTokenOfAServiceChangesNoWebhookConfiguration(t *testing.T) {
	r := newRig(t)
	for _, account := range []string{"injector", "config-watcher", "xds-server", "ca"} {
		config, err := clientcmd.BuildConfigFromFlags("", r.ServiceAccount(t, system, account))
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		hooks := client.AdmissionregistrationV1()
		widen := []byte(`[{"op":"add","path":"/webhooks/0/rules/-","value":{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*/*"]}}]`)
		label := []byte(`{"metadata":{"labels":{"istio.io/rev":"another"}}}`)
		for kind, patch := range map[types.PatchType][]byte{types.JSONPatchType: widen, types.MergePatchType: label} {
			if _, err := hooks.MutatingWebhookConfigurations().Patch(t.Context(), hookName, kind, patch,
				metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("%s changes the injector's webhooks by %s: %v", account, kind, err)
			}
			if _, err := hooks.ValidatingWebhookConfigurations().Patch(t.Context(), "fairlead-validator", kind, patch,
				metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("%s changes config-watcher's webhook by %s: %v", account, kind, err)
			}
		}
	}
}

// The keeper has the right, and so listens on nothing.
func TestNothingCanTalkToTheKeeper(t *testing.T) {
	r := newRig(t)
	r.start()
	roots, err := os.ReadFile(r.roots)
	if err != nil {
		t.Fatal(err)
	}
	r.bundles(hookName, roots)
	sockets := map[string]string{}
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6", "raw", "raw6"} {
		text, err := os.ReadFile("/proc/net/" + table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			const listening, state, inode = "0A", 3, 9
			if f := strings.Fields(line); len(f) > inode && (f[state] == listening || !strings.HasPrefix(table, "tcp")) {
				sockets["socket:["+f[inode]+"]"] = table + " " + f[1]
			}
		}
	}
	dir := fmt.Sprintf("/proc/%d/fd", r.keeper.PID())
	fds, err := os.ReadDir(dir)
	if err != nil || len(fds) == 0 {
		t.Fatalf("%d files, %v", len(fds), err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && sockets[to] != "" {
			t.Errorf("the keeper listens: %s", sockets[to])
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.keeper.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
