package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/proxyconfig"
)

// ClusterID is the cluster id of all proxies; Istio's default.
const ClusterID = "Kubernetes"

// agent plans the Pod's node-agent. Its environment is what Istio's injection gives to its agent.
func (w *planner) agent(p *Pod) error {
	l := w.o.Layout
	path, err := w.o.Find("node-agent")
	if err != nil {
		return err
	}
	a := &Agent{
		StateDir:  l.Agent(p.ID()),
		TokenFile: l.Token(p.ID()),
		Ready:     netip.AddrPortFrom(p.IP, ReadyPort),
		Status:    netip.AddrPortFrom(p.IP, AgentPort),
		NoEnvoy:   p.Kind == Proxyless,
	}
	if a.NoEnvoy {
		a.Ready = a.Status
	}
	role := "sidecar"
	if p.Kind == Gateway {
		role = "router"
	}
	a.Process = Process{
		Name: p.ID() + "/" + proxyContainer,
		Path: path,
		Log:  l.Log(p.ID() + "." + proxyContainer),
		// The agent drains Envoy first, and then needs time until Envoy has ended.
		Grace: w.o.Drain + 5*time.Second,
		Args: []string{
			"proxy", role,
			"--log-level", w.o.LogLevel,
			"--state-dir", a.StateDir,
			"--token-file", a.TokenFile,
			"--root-cert-file", l.RootCert(),
			"--envoy-binary", w.o.Envoy,
			"--discovery-address", w.xds,
			"--ca-address", netip.AddrPortFrom(w.addrs.at(caOffset), SecurePort).String(),
			"--status-address", a.Status.String(),
			"--bind", p.IP.String(),
		},
	}
	env := &environment{values: map[string]string{}}
	if err := w.agentEnv(env, p, a); err != nil {
		return err
	}
	a.Env = env.list(w.o.BaseEnv)
	p.Agent = a
	return nil
}

func (w *planner) agentEnv(e *environment, p *Pod, a *Agent) error {
	e.set("POD_NAME", p.Name)
	e.set("POD_NAMESPACE", p.Namespace)
	e.set("INSTANCE_IP", p.IP.String())
	e.set("SERVICE_ACCOUNT", p.ServiceAccount)
	e.set("TRUST_DOMAIN", w.o.TrustDomain)
	e.set("ISTIO_META_CLUSTER_ID", ClusterID)
	e.set("ISTIO_META_MESH_ID", w.o.TrustDomain)
	e.set("ISTIO_META_NODE_NAME", NodeName)
	e.set("ISTIO_META_WORKLOAD_NAME", w.Name)
	e.set("ISTIO_META_OWNER", fmt.Sprintf("kubernetes://apis/apps/v1/namespaces/%s/deployments/%s", p.Namespace, w.Name))
	e.set("ISTIO_META_INTERCEPTION_MODE", "NONE")
	if a.NoEnvoy {
		e.set("ISTIO_META_GENERATOR", "grpc")
		e.set("GRPC_XDS_BOOTSTRAP", a.GRPCBootstrap())
		e.set("DISABLE_ENVOY", "true")
	}
	e.set("TERMINATION_DRAIN_DURATION_SECONDS", fmt.Sprint(int(w.o.Drain.Seconds())))
	e.set("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true")
	// Longer than it takes until callers know that the Pod is not ready: see agentProbe in package local.
	e.set("MINIMUM_DRAIN_DURATION", "2s")

	var apps string
	for i, c := range p.Containers {
		if i > 0 {
			apps += ","
		}
		apps += c.Container
	}
	e.set("ISTIO_META_APP_CONTAINERS", apps)
	labels, err := json.Marshal(p.Labels)
	if err != nil {
		return fmt.Errorf("labels of %s: %w", p.ID(), err)
	}
	e.set("ISTIO_METAJSON_LABELS", string(labels))
	config, err := w.mesh.ProxyConfig(w.Source, p.Labels, p.Annotations)
	if err != nil {
		return err
	}
	if probe, _ := config["readinessProbe"].(map[string]any); probe["exec"] != nil {
		return w.Source.Refuse("readinessProbe.exec", "a ProxyConfig may not say what runs on this machine",
			"probe by httpGet, tcpSocket or grpc in the annotation "+proxyconfig.Annotation+", in MeshConfig's defaultConfig or in ProxyConfigs")
	}
	if len(config) > 0 {
		text, err := yaml.Marshal(config)
		if err != nil {
			return fmt.Errorf("ProxyConfig of %s: %w", p.ID(), err)
		}
		e.set("PROXY_CONFIG", string(text))
	}
	a.Args = append(a.Args, config.Flags()...)
	for _, v := range config.Environment() {
		if slices.Contains(proxyconfig.Reserved, v.Name) {
			return w.Source.Refuse("proxyMetadata."+v.Name,
				"a ProxyConfig may not say what a process of this machine loads or where the agent writes",
				"remove it from the annotation "+proxyconfig.Annotation+", from MeshConfig's defaultConfig or from ProxyConfigs")
		}
		e.set(v.Name, v.Value)
	}
	// The env of a container istio-proxy in the template goes to the agent, as in Istio's injection.
	for i, c := range p.spec.Spec.Containers {
		if c.Name == proxyContainer {
			if err := w.userEnv(e, p, c, fmt.Sprintf("spec.template.spec.containers[%d]", i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Manifest is the Pod as an object of the mesh, as a cluster's API server would hold it, with its status.
func (p *Pod) Manifest(ready bool, started time.Time) *corev1.Pod {
	pod := &corev1.Pod{Spec: *p.spec.Spec.DeepCopy()}
	pod.APIVersion, pod.Kind = "v1", "Pod"
	pod.Name, pod.Namespace = p.Name, p.Namespace
	pod.Labels, pod.Annotations = p.Labels, p.Annotations
	pod.Spec.ServiceAccountName = p.ServiceAccount
	pod.Spec.NodeName = NodeName
	pod.Status = p.Status(ready, started)
	return pod
}
