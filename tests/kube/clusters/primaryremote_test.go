package clusters

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

const (
	remoteNamespace = "fairlead-remote"
	remoteInjector  = "injector.fairlead-remote.svc"
)

// remote is a cluster with profile remote, whose control plane is west's mesh.
type remote struct {
	*mesh
	east    *kubeapi.Server
	keeper  *process.Process
	address string // of the injector, name is that in its certificate
	name    string
}

// TestPrimaryRemote installs profile remote in a second API server: the injector there has a certificate of the
// primary's ca, by a token of its own cluster, and the keeper writes caBundle and the roots of all namespaces. A
// rotation of the ca's root reaches them, without a moment in which the API server could not verify the injector, and
// waits for a keeper that is away.
func TestPrimaryRemote(t *testing.T) {
	m := startMesh(t, startClusters(t, "west", "east"))
	m.trust("east", "--namespaces", "shop,"+remoteNamespace)
	m.states("trusted", 1)
	m.xdsKnows("east")
	r := &remote{mesh: m, east: m.servers["east"], name: remoteInjector}
	applyProfile(t, r.east, "remote")
	r.install()
	r.startInjector()
	t.Run("is certified by the primary", r.certified)
	t.Run("follows a rotation of the root", r.rotation)
	t.Run("keeps the new roots over a restart", r.restart)
	t.Run("is waited for", r.awaited)
}

// applyProfile applies the objects of a profile of remote clusters.
func applyProfile(t *testing.T, s *kubeapi.Server, profile string) {
	t.Helper()
	generate := exec.CommandContext(t.Context(), binaries.Built(t, "fairlead"), "manifest", "generate", "--set", "profile="+profile,
		"--set", "values.global.remotePilotAddress=192.0.2.1") //nolint:gosec // the program under test
	objects := process.MustDo(t, generate)
	for _, namespace := range []string{meshNamespace, remoteNamespace, "shop"} {
		s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
	}
	s.Apply(t, objects)
}

// install writes the roots into east, where the objects of the profile are, and starts the keeper with the rights of
// its account.
func (r *remote) install() {
	t := r.t
	t.Helper()
	_, err := r.east.Client(t).CoreV1().ConfigMaps(meshNamespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "fairlead-remote-roots"}, Data: map[string]string{"root-cert.pem": r.westRoots()},
	}, metav1.CreateOptions{})
	testkit.NoError(t, err)

	r.startKeeper()
	r.everywhere(r.westRoots())
}

// startInjector starts the injector of east, with the rights and the identity of its account there.
func (r *remote) startInjector() {
	t := r.t
	t.Helper()
	roots := filepath.Join(r.dir, "east-roots.pem") // as a kubelet would write it
	testkit.WriteFile(t, roots, []byte(r.published(remoteNamespace)))
	ops := testkit.FreeAddress(t).String()
	r.address = testkit.FreeAddress(t).String()
	r.run("fairlead-injector", ops, "--kubeconfig", r.east.ServiceAccount(t, remoteNamespace, "injector"), "--namespace", remoteNamespace,
		"--mesh-config-namespace", meshNamespace, "--webhook-configuration", "istio-sidecar-injector", "--webhook-address", r.address,
		"--ops-address", ops, "--ca-address", r.xdsAddr, "--ca-identity", "istio-system/xds-server", "--signer-identity", "istio-system/ca",
		"--identity", remoteNamespace+"/injector", "--ca-token-file", r.tokenFile("injector"), "--root-cert-file", roots)
}

// tokenFile has a token of the Pod of an account in east, as a kubelet would write it: the ca knows by the Pod which
// certificate takes the place of which.
func (r *remote) tokenFile(account string) string {
	t := r.t
	t.Helper()
	r.east.ServiceAccount(t, remoteNamespace, account)
	client := r.east.Client(t).CoreV1()
	pod, err := client.Pods(remoteNamespace).Get(t.Context(), account+"-0", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		r.east.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %[1]s-0, namespace: %[2]s}, spec: {serviceAccountName: %[1]s,
securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}, containers: [{name: %[1]s, image: %[1]s,
securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]}}`, account, remoteNamespace))
		pod, err = client.Pods(remoteNamespace).Get(t.Context(), account+"-0", metav1.GetOptions{})
	}
	testkit.NoError(t, err)
	token, err := client.ServiceAccounts(remoteNamespace).CreateToken(t.Context(), account, &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		Audiences: []string{contract.TokenAudience}, BoundObjectRef: &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name,
			UID: pod.UID}}}, metav1.CreateOptions{})
	testkit.NoError(t, err)
	file := filepath.Join(r.dir, "east-"+account+".token")
	testkit.WriteFile(t, file, []byte(token.Status.Token))
	return file
}

func (r *remote) startKeeper() {
	t := r.t
	t.Helper()
	r.keeper = process.Run(t, process.Program{Name: "fairlead-keeper", Path: binaries.Built(t, "fairlead-keeper"), Args: []string{
		"--kubeconfig", r.east.ServiceAccount(t, remoteNamespace, "keeper"), "--first-roots", "istio-system/fairlead-remote-roots",
		"--xds-address", r.xdsAddr, "--xds-identity", "istio-system/xds-server", "--ca-identity", "istio-system/ca",
		"--identity", remoteNamespace + "/keeper", "--ca-token-file", r.tokenFile("keeper"), "--publish-roots", contract.RootConfigMap,
		"--injection", "istio-sidecar-injector",
	}, Stdout: r.log("fairlead-keeper"), Stderr: r.log("fairlead-keeper")})
}

// westRoots are the roots that the ca publishes in its own cluster.
func (m *mesh) westRoots() string {
	m.t.Helper()
	o, err := m.west.Client(m.t).CoreV1().ConfigMaps(meshNamespace).Get(m.t.Context(), contract.RootConfigMap, metav1.GetOptions{})
	testkit.NoError(m.t, err)
	return o.Data["root-cert.pem"]
}

func (r *remote) published(namespace string) string {
	o, err := r.east.Client(r.t).CoreV1().ConfigMaps(namespace).Get(r.t.Context(), contract.RootConfigMap, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return o.Data["root-cert.pem"]
}

// everywhere waits until all namespaces of east have these roots, and the webhooks as caBundle.
func (r *remote) everywhere(want string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		namespaces, err := r.east.Client(r.t).CoreV1().Namespaces().List(r.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, ns := range namespaces.Items {
			if got := r.published(ns.Name); !sameCertificates(got, want) {
				return fmt.Errorf("namespace %s has other roots: %q", ns.Name, got)
			}
		}
		if got := string(r.caBundle()); !sameCertificates(got, want) {
			return fmt.Errorf("caBundle is %q", got)
		}
		return nil
	})
}

// sameCertificates compares texts in PEM, in any order.
func sameCertificates(a, b string) bool {
	set := func(text string) map[string]bool {
		out := map[string]bool{}
		for rest := []byte(text); ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				return out
			}
			out[string(block.Bytes)] = true
		}
	}
	x, y := set(a), set(b)
	for c := range x {
		if !y[c] {
			return false
		}
	}
	return len(x) == len(y) && len(x) > 0
}

// caBundle is that of all webhooks of east.
func (r *remote) caBundle() []byte {
	r.t.Helper()
	hook, err := r.east.Client(r.t).AdmissionregistrationV1().MutatingWebhookConfigurations().Get(r.t.Context(), "istio-sidecar-injector",
		metav1.GetOptions{})
	testkit.NoError(r.t, err)
	first := hook.Webhooks[0].ClientConfig
	for _, w := range hook.Webhooks {
		if s := w.ClientConfig.Service; s == nil || s.Namespace+"/"+s.Name != remoteNamespace+"/injector" ||
			!bytes.Equal(w.ClientConfig.CABundle, first.CABundle) {
			r.t.Fatalf("webhook %s calls %+v", w.Name, w.ClientConfig)
		}
	}
	return first.CABundle
}

// review asks the injector as an API server does: by the name of the Service, verified with caBundle.
func (r *remote) review() error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.caBundle())
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: r.name}}}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "web", Image: "web"}}}}
	raw, err := json.Marshal(&pod)
	if err != nil {
		return err
	}
	body, err := json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: types.UID("1"), Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Namespace: "shop", Operation: admissionv1.Create,
			Object: runtime.RawExtension{Raw: raw}}})
	if err != nil {
		return err
	}
	res, err := client.Post("https://"+r.address+"/inject", "application/json", bytes.NewReader(body)) //nolint:noctx // a test
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // a test
	text, err := io.ReadAll(res.Body)
	var answer admissionv1.AdmissionReview
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err == nil && (answer.Response == nil || !answer.Response.Allowed || !strings.Contains(string(answer.Response.Patch), "istio-proxy")) {
		err = fmt.Errorf("the injector answers %d %s", res.StatusCode, text)
	}
	return err
}

func (r *remote) certified(t *testing.T) {
	testkit.Eventually(t, patience, r.review)
}

// order gives the ca an administrator's command, or asks how it stands.
func (m *mesh) order(command *caapi.Command) (s caapi.Status, err error) {
	m.t.Helper()
	method, path, body := http.MethodGet, caapi.StatusPath, []byte(nil)
	if command != nil {
		method, path, body = http.MethodPost, caapi.CommandPath, testkit.Must(json.Marshal(command))(m.t)
	}
	req := testkit.Must(http.NewRequestWithContext(m.t.Context(), method, "http://"+m.caOps+path, bytes.NewReader(body)))(m.t)
	req.Header.Set("Authorization", "Bearer "+m.token("west", meshNamespace, contract.AdminAccount, contract.AdminAudience))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer res.Body.Close() //nolint:errcheck // a test
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("the ca answers %d: %s", res.StatusCode, text)
	}
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

func (r *remote) rotation(t *testing.T) {
	before := r.westRoots()
	if _, err := r.order(&caapi.Command{Action: caapi.Rotate, Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	asked := 0
	testkit.Eventually(t, 2*patience, func() error {
		if err := r.review(); err != nil {
			t.Fatalf("after %d reviews: %v", asked, err)
		}
		asked++
		s, err := r.order(nil)
		if err == nil && (s.Step != "idle" || s.Signers[0].ID != 2) {
			err = fmt.Errorf("at step %s; waits for %v and %+v, problems %v", s.Step, s.Waits, s.Lagging, s.Problems)
		}
		return err
	})
	if r.westRoots() == before || asked < 2 {
		t.Fatalf("the roots are the same, after %d reviews", asked)
	}
	r.everywhere(r.westRoots())
	testkit.NoError(t, r.review())
}

// restart holds that the first roots, which nobody has changed and which are retired, do not come back.
func (r *remote) restart(t *testing.T) {
	r.keeper.Kill()
	r.east.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: later}}")
	r.startKeeper()
	r.everywhere(r.westRoots())
	first, err := r.east.Client(t).CoreV1().ConfigMaps(meshNamespace).Get(t.Context(), "fairlead-remote-roots", metav1.GetOptions{})
	if err != nil || first.Data["root-cert.pem"] == r.westRoots() {
		t.Fatalf("the first roots are not those of the beginning: %v", err)
	}
}

// awaited holds that the ca issues nothing of a root that east's ConfigMaps do not have.
func (r *remote) awaited(t *testing.T) {
	id := fmt.Sprintf("spiffe://cluster.local/ns/%s/sa/keeper", remoteNamespace)
	testkit.Eventually(t, patience, func() error { // its certificate is known, and what it has acknowledged
		s, err := r.order(nil)
		if err == nil && s.Holders.Total != s.Holders.Acknowledged {
			err = fmt.Errorf("%+v", s.Holders)
		}
		return err
	})
	r.keeper.Kill()
	before := r.published("shop")
	if _, err := r.order(&caapi.Command{Action: caapi.Rotate, Reason: "again"}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() error {
		s, err := r.order(nil)
		if err != nil {
			return err
		}
		others := errors.New("nobody lags")
		for _, h := range s.Lagging.First {
			if h.Identity != id {
				return fmt.Errorf("%s lags, too", h.Identity)
			}
			others = nil
		}
		if s.Step != "gate" {
			return fmt.Errorf("at step %s", s.Step)
		}
		return others
	})
	if r.published("shop") != before {
		t.Error("roots were written without the keeper")
	}
	testkit.NoError(t, r.review())
}
