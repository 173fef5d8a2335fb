package gather

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/services/installer/internal/analysis"
	"fairlead.dev/services/installer/internal/bugreport"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/versions"
)

const (
	// maxReportPods bounds the Pods that a report looks at, and maxReportObjects the objects of one kind.
	maxReportPods    = 50_000
	maxReportObjects = 20_000
	// maxLogLines is how many of its last lines are read of a log.
	maxLogLines = 100_000
)

// cluster gathers the mesh of a cluster, or what there is of one without a control plane that runs.
func (g *gatherer) cluster(ctx context.Context) error {
	api, err := g.cfg.Mesh.Cluster.API()
	if err != nil {
		return err
	}
	namespace := g.cfg.Mesh.Cluster.Namespace
	pods, err := g.pods(ctx, api)
	if err != nil && len(pods) == 0 {
		return err // nothing can be read
	}
	if err != nil {
		g.report.Missing("proxies", err)
	}
	// Objects come first: what is redacted in them is looked for in all logs.
	g.cfg.Progress("reading the API server's objects")
	g.report.Run(ctx, g.podObjects(pods, namespace))
	tasks, err := g.objectTasks(api, namespace)
	if err != nil {
		return err
	}
	g.report.Run(ctx, tasks)

	tasks = nil
	if g.controlPlane != nil {
		tasks = append(tasks, g.meshTasks()...)
		for _, r := range g.controlPlane.Replicas {
			tasks = append(tasks, pagesOf(r.Program, r.Program+"/"+r.Name(), r.Ops())...)
		}
	}
	tasks = append(tasks, g.clusterAnalysis()...)
	for i := range pods {
		tasks = append(tasks, g.podTasks(api, &pods[i], namespace)...)
	}
	g.cfg.Progress(fmt.Sprintf("reading the control plane and %d Pods", len(pods)))
	g.report.Run(ctx, tasks)
	return nil
}

// clusterAnalysis runs `fairlead analyze --kube`, which can impersonate nobody: with --as it would read more, or less,
// than the rest of the report.
func (g *gatherer) clusterAnalysis() []bugreport.Task {
	c := g.cfg.Mesh.Cluster
	if c.As != "" || len(c.AsGroups) > 0 {
		g.report.Missing("status/analysis.json",
			errors.New("analyze knows no --as: run `fairlead analyze --kube` with a kubeconfig of that user"))
		return nil
	}
	return []bugreport.Task{g.analysis(analysis.Options{Kube: true, Kubeconfig: c.Kubeconfig, Context: c.Context})}
}

// pods lists the Pods of the control plane, and those with a proxy that the flags choose.
func (g *gatherer) pods(ctx context.Context, api kube.API) (chosen []corev1.Pod, err error) {
	namespaces := []string{g.cfg.Mesh.Cluster.Namespace}
	if g.controlPlane != nil {
		for _, r := range g.controlPlane.Replicas {
			namespaces = append(namespaces, r.Namespace)
		}
	}
	seen := 0
	err = kube.EachPod(ctx, api, "", "", func(p *corev1.Pod) error {
		if seen++; seen > maxReportPods {
			return fmt.Errorf("the cluster has more than %d Pods; the others were not looked at", maxReportPods)
		}
		if slices.Contains(namespaces, p.Namespace) || (&meshclient.Pod{Pod: p}).Container() != nil &&
			slices.ContainsFunc(containers(p), func(c string) bool { return g.cfg.Selection.Takes(podOf(p), c) }) {
			chosen = append(chosen, *p)
		}
		return nil
	})
	return chosen, err
}

// podOf is a Pod for a selection. The Deployment is known by the ReplicaSet's name, which ends with the hash of the
// template.
func podOf(p *corev1.Pod) bugreport.Pod {
	out := bugreport.Pod{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, Annotations: p.Annotations}
	for _, o := range p.OwnerReferences {
		if out.Deployment = o.Name; o.Kind == "ReplicaSet" {
			out.Deployment = strings.TrimSuffix(o.Name, "-"+p.Labels["pod-template-hash"])
		}
	}
	return out
}

func containers(p *corev1.Pod) (names []string) {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			names = append(names, c.Name)
		}
	}
	return names
}

func podFolder(p *corev1.Pod, namespace string) string {
	if p.Namespace == namespace {
		return "control-plane/pods/" + p.Name
	}
	return "proxies/" + p.Namespace + "/" + p.Name
}

// podObjects adds the Pods themselves.
func (g *gatherer) podObjects(pods []corev1.Pod, namespace string) (tasks []bugreport.Task) {
	for i := range pods {
		p := &pods[i]
		p.APIVersion, p.Kind = "v1", "Pod"
		tasks = append(tasks, task(podFolder(p, namespace)+"/pod.json", func(context.Context) (any, error) { return p, nil }))
	}
	return tasks
}

// podTasks read a Pod's logs, and its Envoy.
func (g *gatherer) podTasks(api kube.API, p *corev1.Pod, namespace string) (tasks []bugreport.Task) {
	folder := podFolder(p, namespace)
	for _, status := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if p.Namespace != namespace && !g.cfg.Selection.Takes(podOf(p), status.Name) {
			continue
		}
		tasks = append(tasks, g.logTask(api, p, status.Name, folder+"/"+status.Name+".log", false))
		if status.RestartCount > 0 {
			tasks = append(tasks, g.logTask(api, p, status.Name, folder+"/"+status.Name+"-previous.log", true))
		}
	}
	proxy := &meshclient.Pod{Pod: p, ControlPlane: g.controlPlane}
	if c := proxy.Container(); c != nil && g.controlPlane != nil && p.Status.Phase == corev1.PodRunning &&
		g.cfg.Selection.Takes(podOf(p), meshclient.ProxyContainer) {
		tasks = append(tasks, proxyTasks(p.Namespace+"/"+p.Name, proxy.Admin)...)
	}
	return tasks
}

// logTask reads a container's log of the time that is wanted.
func (g *gatherer) logTask(api kube.API, p *corev1.Pod, container, name string, previous bool) bugreport.Task {
	return bugreport.Task{Name: name, Get: func(ctx context.Context) ([]byte, error) {
		lines := int64(maxLogLines)
		options := &corev1.PodLogOptions{Container: container, Previous: previous, Timestamps: true, TailLines: &lines}
		if !g.cfg.Since.IsZero() {
			since := metav1.NewTime(g.cfg.Since)
			options.SinceTime = &since
		}
		stream, err := api.CoreV1().Pods(p.Namespace).GetLogs(p.Name, options).Stream(ctx)
		if err != nil {
			return nil, kube.Explain(err)
		}
		defer stream.Close()
		return logLines(stream, g.cfg.Until)
	}}
}

// logLines reads lines that begin with a time up to a moment; the end of a long log stays.
func logLines(stream io.Reader, until time.Time) ([]byte, error) {
	var out bytes.Buffer
	in := bufio.NewReader(stream)
	for {
		line, err := in.ReadSlice('\n')
		stamp, _, _ := bytes.Cut(line, []byte(" "))
		at, none := time.Parse(time.RFC3339Nano, string(stamp))
		if until.IsZero() || none != nil || !at.After(until) {
			out.Write(line)
		}
		if out.Len() > 2*bugreport.MaxFile {
			out.Next(out.Len() - bugreport.MaxFile)
		}
		switch {
		case errors.Is(err, io.EOF):
			return out.Bytes(), nil
		case errors.Is(err, bufio.ErrBufferFull): // a long line comes in parts
		case err != nil:
			return out.Bytes(), err
		}
	}
}

// reportGroups are the API groups whose objects are read, those of the cluster's definitions that are there.
var reportGroups = []string{
	"networking.istio.io", "security.istio.io", "telemetry.istio.io", "extensions.istio.io", "install.istio.io", "gateway.networking.k8s.io",
	"gateway.networking.x-k8s.io", "fairlead.dev",
}

// coreObjects are read in the namespace of the control plane.
var coreObjects = []schema.GroupVersionResource{
	{Version: "v1", Resource: "services"}, {Version: "v1", Resource: "serviceaccounts"}, {Version: "v1", Resource: "events"},
	{Group: "apps", Version: "v1", Resource: "deployments"}, {Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"},
	{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
}

// clusterObjects have no namespace.
var clusterObjects = []schema.GroupVersionResource{
	{Version: "v1", Resource: "namespaces"}, {Version: "v1", Resource: "nodes"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
}

// objectTasks read the API server's objects: no Secret is among them.
func (g *gatherer) objectTasks(api kube.API, namespace string) ([]bugreport.Task, error) {
	config, err := g.cfg.Mesh.Cluster.Rest()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	tasks := []bugreport.Task{
		task("versions/api-server.json", func(context.Context) (any, error) {
			v, err := api.Discovery().ServerVersion()
			return v, kube.Explain(err)
		}),
		task("versions/control-plane.json", func(ctx context.Context) (any, error) {
			if g.controlPlane == nil {
				return []versions.Replica{}, nil
			}
			return versions.Replicas(ctx, g.controlPlane), nil
		}),
		task("configuration/installations.json", func(ctx context.Context) (any, error) {
			c, err := cluster.Connect(config)
			if err != nil {
				return nil, err
			}
			return inventory.List(ctx, c)
		}),
	}
	list := func(name string, of schema.GroupVersionResource, in string) {
		tasks = append(tasks, task(name, func(ctx context.Context) (any, error) { return objects(ctx, client, of, in) }))
	}
	for _, r := range coreObjects {
		list("control-plane/"+r.Resource+".json", r, namespace)
	}
	for _, r := range clusterObjects {
		list("cluster/"+r.Resource+".json", r, "")
	}
	tasks = append(tasks, task("configuration/configmaps.json", func(ctx context.Context) (any, error) {
		all, err := objects(ctx, client, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, namespace)
		return slices.DeleteFunc(all, func(o unstructured.Unstructured) bool {
			return !strings.HasPrefix(o.GetName(), "istio") && !strings.HasPrefix(o.GetName(), "fairlead")
		}), err
	}))
	_, lists, err := api.Discovery().ServerGroupsAndResources()
	if err != nil {
		g.report.Missing("kinds of some API groups", kube.Explain(err))
	}
	read := map[schema.GroupResource]bool{}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil || !slices.Contains(reportGroups, gv.Group) {
			continue
		}
		for _, r := range l.APIResources {
			id := schema.GroupResource{Group: gv.Group, Resource: r.Name}
			if !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "list") && !read[id] {
				read[id] = true
				list("configuration/"+cmp.Or(gv.Group, "core")+"/"+r.Name+".json", gv.WithResource(r.Name), "")
			}
		}
	}
	return tasks, nil
}

// objects lists objects of a kind; those beyond maxReportObjects are left out with an error.
func objects(ctx context.Context, client dynamic.Interface, of schema.GroupVersionResource, namespace string) ([]unstructured.Unstructured,
	error) {
	all, next := []unstructured.Unstructured{}, ""
	for {
		list, err := client.Resource(of).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: kube.Page, Continue: next})
		if err != nil {
			return nil, kube.Explain(err)
		}
		if all = append(all, list.Items...); len(all) > maxReportObjects {
			return nil, fmt.Errorf("there are more than %d %s, too many for a report", maxReportObjects, of.Resource)
		}
		if next = list.GetContinue(); next == "" {
			return all, nil
		}
	}
}
