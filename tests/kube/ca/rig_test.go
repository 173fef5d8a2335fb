package ca

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

const (
	patience = testkit.Patience
	// meshNamespace is where the ca is.
	meshNamespace = "istio-system"
	caName        = "ca.istio-system.svc"
	// inPod is where a program finds the service account of its Pod.
	inPod = "/run/secrets/kubernetes.io/serviceaccount"
)

// replicatedCA is a ca of several processes, with their state and their keys in Secrets of one API server.
type replicatedCA struct {
	t        *testing.T
	api      *kubeapi.Server
	replicas []*caReplica
	account  string // a directory with what a Pod finds at inPod
	binary   string
	admin    string // a token for /debug
}

type caReplica struct {
	of        *replicatedCA
	name      string
	grpc, ops string
	roots     string // the file of the bundle
	args      []string
	process   *process.Process
}

// startCA starts n replicas and waits until they are ready.
func startCA(t *testing.T, api *kubeapi.Server, n int) *replicatedCA {
	t.Helper()
	c := &replicatedCA{t: t, api: api, account: t.TempDir(), binary: binaries.Built(t, "ca")}
	api.ApplyCRDs(t)
	config := kubeapi.Load(t, api.ServiceAccount(t, meshNamespace, "ca"))
	api.Grant(t, kubeapi.ServiceAccountSubject(meshNamespace, "ca"), kubeapi.Rule("*", []string{"*"}, "*"))
	roots := config.CAData
	if len(roots) == 0 {
		roots = testkit.Must(os.ReadFile(config.CAFile))(t)
	}
	testkit.WriteFile(t, filepath.Join(c.account, "token"), []byte(config.BearerToken))
	testkit.WriteFile(t, filepath.Join(c.account, "ca.crt"), roots)
	api.ServiceAccount(t, contract.SystemNamespace, contract.AdminAccount)
	c.admin = testkit.Must(api.Client(t).CoreV1().ServiceAccounts(contract.SystemNamespace).CreateToken(t.Context(), contract.AdminAccount,
		&authv1.TokenRequest{Spec: authv1.TokenRequestSpec{Audiences: []string{contract.AdminAudience}}}, metav1.CreateOptions{}))(t).Status.Token

	dir := t.TempDir()
	signer := filepath.Join(dir, "signer.yaml")
	testkit.WriteFile(t, signer, []byte("{apiVersion: ca.fairlead.dev/v1, kind: Signer, name: shared, "+
		"intermediate: {keys: {secret: {namespace: istio-system, name: ca-keys}}, selfSigned: {}}}\n"))
	var peers []string
	for i := range n {
		r := &caReplica{of: c, name: fmt.Sprint("ca-", i), grpc: testkit.FreeAddress(t).String(), ops: testkit.FreeAddress(t).String()}
		r.roots = filepath.Join(dir, r.name+".pem")
		c.replicas, peers = append(c.replicas, r), append(peers, r.grpc)
	}
	for _, r := range c.replicas {
		r.args = []string{
			"--grpc-address", r.grpc, "--ops-address", r.ops, "--ca-dir", filepath.Join(dir, r.name), "--signer-file", signer,
			"--kubernetes", "--state-secret", "istio-system/ca-state", "--lease", "ca", "--replica", r.name, "--peers", strings.Join(peers, ","),
			"--dns-names", "istio-system/ca=" + caName, "--root-cert-out", r.roots, "--workload-ttl", "1h",
		}
		r.start()
	}
	for _, r := range c.replicas {
		testkit.Eventually(t, 2*patience, r.ready)
	}
	return c
}

// start starts the process, which finds itself in a Pod.
func (r *caReplica) start() {
	r.of.t.Helper()
	host, port, _ := strings.Cut(strings.TrimPrefix(r.of.api.Config.Host, "https://"), ":")
	log := filepath.Join(r.of.account, r.name+".log")
	p, err := process.Start(process.Program{Name: r.name, Path: r.of.binary, Args: r.args, Stdout: log, Stderr: log,
		Env: []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}}, r.of.enterPod)
	if err != nil {
		r.of.t.Fatal(err)
	}
	r.process = p
	r.of.t.Cleanup(func() {
		p.Kill()
		if r.of.t.Failed() && r.process == p {
			r.of.t.Logf("the log of %s ends with\n%s", r.name, p.LogTail())
		}
	})
}

// enterPod gives this thread a /run with nothing but the service account.
func (c *replicatedCA) enterPod() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	mount := func(from, to, kind string, flags uintptr) error {
		if err := unix.Mount(from, to, kind, flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", to, err)
		}
		return nil
	}
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE); err != nil {
		return err
	}
	if err := mount("run", "/run", "tmpfs", 0); err != nil {
		return err
	}
	if err := os.MkdirAll(inPod, 0o755); err != nil {
		return err
	}
	return mount(c.account, inPod, "", unix.MS_BIND)
}

func (r *caReplica) ready() error {
	if err := r.process.Died(); err != nil {
		return fmt.Errorf("%s has ended: %w", r.name, err)
	}
	res, err := http.Get("http://" + r.ops + "/readyz")
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // a test
	if res.StatusCode != http.StatusOK {
		text, err := io.ReadAll(res.Body)
		return errors.Join(err, fmt.Errorf("%s: /readyz answers %d: %s", r.name, res.StatusCode, text))
	}
	return nil
}

// ask gets a page of /debug, or sends an order there.
func (c *replicatedCA) ask(r *caReplica, path string, order *caapi.Command, into any) error {
	method, body := http.MethodGet, []byte(nil)
	if order != nil {
		method, body = http.MethodPost, testkit.Must(json.Marshal(order))(c.t)
	}
	req := testkit.Must(http.NewRequestWithContext(c.t.Context(), method, "http://"+r.ops+path, bytes.NewReader(body)))(c.t)
	req.Header.Set("Authorization", "Bearer "+c.admin)
	res, err := (&http.Client{Timeout: 5 * time.Second}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // a test
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %d: %s", path, res.StatusCode, text)
	}
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// order sends a command to whichever replica takes it.
func (c *replicatedCA) order(command caapi.Command) {
	c.t.Helper()
	testkit.Eventually(c.t, patience, func() error {
		var errs []error
		for _, r := range c.replicas {
			err := c.ask(r, caapi.CommandPath, &command, nil)
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// status is how the ca stands, as the first replica says that answers.
func (c *replicatedCA) status() (s caapi.Status, err error) {
	var errs []error
	for _, r := range c.replicas {
		if err := c.ask(r, caapi.StatusPath, nil, &s); err == nil {
			return s, nil
		} else {
			errs = append(errs, err)
		}
	}
	return s, errors.Join(errs...)
}

// rotated reports that the rotation has led to a signer.
func (c *replicatedCA) rotated(id uint64) error {
	s, err := c.status()
	if err == nil && (s.Step != "idle" || s.Signers[0].ID != id) {
		err = fmt.Errorf("at step %s, signer %d; waits for %v and %+v, problems %v", s.Step, s.Signers[0].ID, s.Waits, s.Lagging, s.Problems)
	}
	return err
}
