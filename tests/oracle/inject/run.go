// Package inject compares `fairlead kube-inject` with `istioctl kube-inject` on the same workloads, with Istio's own
// templates and values: the verdict, and the injected objects. `make oracle` runs it.
package inject

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Case is one workload with the configuration that it is injected with.
type Case struct {
	Name string `json:"name"`
	// Config is a key of Configs.
	Config string `json:"config"`
	// Native makes the proxy a native sidecar.
	Native bool `json:"native,omitempty"`
	// Document is the workload, as YAML. Broken says that istioctl may refuse it, so that it gets a run of its own.
	Document string `json:"document"`
	Broken   bool   `json:"broken,omitempty"`
}

// Text shows the inputs.
func (c Case) Text() string {
	text, err := yaml.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Outcome is what one program made of a case.
type Outcome struct {
	// Refused is its error; empty if it wrote a Document.
	Refused  string
	Document string
	// Said is what it wrote to standard error, about all documents of the run.
	Said string
}

// Program is one of the two, with the files that Configs were rendered to.
type Program struct {
	Path string
	// Dir has a directory for each of Configs.
	Dir string
}

// runs bounds one run of a program, which reads files and asks no cluster.
const runs = 3 * time.Minute

// Run runs the program on cases of one configuration, many in one file. If it refuses the file, the cases are divided
// until it is known which of them it refuses.
func (p Program) Run(ctx context.Context, cases []Case) ([]Outcome, error) {
	out, said, err := p.inject(ctx, cases)
	var exited *exec.ExitError
	switch {
	case err == nil:
		docs := strings.Split(strings.TrimSuffix(out, "---\n"), "\n---\n")
		if len(docs) != len(cases) {
			return nil, fmt.Errorf("%s wrote %d documents for %d", p.Path, len(docs), len(cases))
		}
		all := make([]Outcome, len(docs))
		for i, d := range docs {
			all[i] = Outcome{Document: strings.TrimSpace(d), Said: said}
		}
		return all, nil
	case !errors.As(err, &exited) || ctx.Err() != nil:
		return nil, err
	case len(cases) == 1:
		return []Outcome{{Refused: said}}, nil
	}
	a, err := p.Run(ctx, cases[:len(cases)/2])
	if err != nil {
		return nil, err
	}
	b, err := p.Run(ctx, cases[len(cases)/2:])
	return append(a, b...), err
}

func (p Program) inject(ctx context.Context, cases []Case) (out, said string, err error) {
	var file bytes.Buffer
	for i, c := range cases {
		if i > 0 {
			file.WriteString("---\n")
		}
		file.WriteString(strings.TrimSpace(c.Document) + "\n")
	}
	ctx, cancel := context.WithTimeout(ctx, runs)
	defer cancel()
	dir := filepath.Join(p.Dir, cases[0].Config)
	cmd := exec.CommandContext(ctx, p.Path, "kube-inject", "-f", "-", "-r", "default", //nolint:gosec // the programs that the test compares
		"--injectConfigFile", filepath.Join(dir, "config"), "--valuesFile", filepath.Join(dir, "values"), "--meshConfigFile",
		filepath.Join(dir, "mesh"))
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(p.Dir, "none"), fmt.Sprintf("ENABLE_NATIVE_SIDECARS=%t", cases[0].Native))
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &file, &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

// Configs are settings of Istio's install package, by name; the ConfigMaps that they render to are the inputs of both
// programs.
var Configs = map[string][]string{
	"default": nil,
	"cni": {"components.cni.enabled=true", "values.pilot.cni.enabled=true", "values.global.imagePullPolicy=Always",
		"values.global.proxy.excludeIPRanges=10.1.0.0/16"},
	"multicluster": {"values.global.meshID=mesh1", "values.global.network=net1", "values.global.multiCluster.clusterName=c1",
		"values.global.variant=debug",
		"values.global.imagePullSecrets[0]=pull", "values.global.logAsJson=true", "meshConfig.trustDomain=example.org",
		"meshConfig.defaultConfig.holdApplicationUntilProxyStarts=true", "meshConfig.defaultConfig.proxyMetadata.ISTIO_META_DNS_CAPTURE=true"},
	"plain": {"values.sidecarInjectorWebhook.rewriteAppHTTPProbe=false", "meshConfig.enablePrometheusMerge=false",
		"values.global.tag=v30-distroless",
		"values.global.hub=example.com/mesh", "values.global.proxy.privileged=true",
		"values.global.proxy.lifecycle.preStop.exec.command[0]=sleep",
		"values.global.proxy.seccompProfile.type=RuntimeDefault", "meshConfig.defaultConfig.image.imageType=debug"},
	"openshift": {"profile=openshift", "meshConfig.defaultConfig.interceptionMode=TPROXY", "values.global.proxy.resources.limits.cpu=null",
		"meshConfig.inboundTrafficPolicy.mode=LOCALHOST", "meshConfig.defaultConfig.statusPort=15099", "values.global.sts.servicePort=15463"},
	"aliased": {"values.sidecarInjectorWebhook.injectedAnnotations.a\\.b/c=d"},
}
