package clustercheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	checkCall = "call"
	// caller is the container that calls.
	caller = "call"
	// callSeconds is how long it tries.
	callSeconds = 30
	// podTime bounds a Pod's life, also if the command is killed; pollTime is the time between two looks at it.
	podTime  = 2 * time.Minute
	pollTime = 500 * time.Millisecond
	// removeTime bounds the removal of a Pod.
	removeTime = 20 * time.Second
	// maxCandidates bounds the Services whose endpoints are looked at.
	maxCandidates = 200
	// maxSaid bounds what is quoted of a Pod's last words.
	maxSaid = 300
)

// Call has a Pod with a sidecar in each cluster call a Service whose endpoints are in the other alone, so that an
// answer shows the whole way: endpoints, gateways, certificates, policies.
type Call struct {
	// Namespace of the Pods.
	Namespace string
	// Image of the Pods, with the program pilot-agent; "" is that of a sidecar of the cluster.
	Image string
}

// all makes the calls of all pairs at once, each way.
func (c *Call) all(ctx context.Context, clusters []*Facts) (rows []Row) {
	var mu sync.Mutex
	var calls sync.WaitGroup
	for _, from := range clusters {
		for _, to := range clusters {
			if from != to {
				calls.Go(func() {
					row := c.one(ctx, from, to)
					mu.Lock()
					defer mu.Unlock()
					rows = append(rows, row)
				})
			}
		}
	}
	calls.Wait()
	slices.SortFunc(rows, func(a, b Row) int { return slices.Compare(a.Clusters, b.Clusters) })
	return rows
}

// one makes one call.
func (c *Call) one(ctx context.Context, from, to *Facts) Row {
	row := Row{Check: checkCall, Clusters: []string{from.Context, to.Context}, Verdict: Unknown}
	target, err := callable(ctx, from, to)
	switch {
	case err != nil:
		row.Finding, row.Remedy = fmt.Sprintf("endpoints cannot be read: %v", err), remedyOf(err)
		return row
	case target == "":
		row.Finding = fmt.Sprintf("no Service for HTTP of both clusters has ready endpoints in %s alone, so that an answer would show where it "+
			"is from", to.Context)
		row.Remedy = fmt.Sprintf("deploy one, such as Istio's helloworld in %s and its Service in both", to.Context)
		return row
	}
	image := c.Image
	if image == "" {
		if image, err = sidecarImage(ctx, from); err != nil {
			row.Finding, row.Remedy = fmt.Sprintf("there is no image for a Pod that calls: %v", err), "name one with --call-image"
			return row
		}
	}
	answer, err := c.run(ctx, from, image, target)
	if err != nil {
		row.Verdict, row.Finding, row.Remedy = Failed, fmt.Sprintf("a Pod of %s calls %s: %v", from.Context, target, err), remedyOfCall(err)
		return row
	}
	row.Verdict = OK
	row.Finding = fmt.Sprintf("a Pod of %s calls %s, whose endpoints are in %s, and gets %s", from.Context, target, to.Context, answer)
	return row
}

// callable is the URL of a Service that both clusters have and whose ready endpoints are in the second alone; "" if
// there is none.
func callable(ctx context.Context, from, to *Facts) (string, error) {
	tried := 0
	for _, name := range slices.Sorted(maps.Keys(to.services)) {
		here, both := from.services[name]
		if !both || here.headless || from.isLocal(name) {
			continue
		}
		for _, port := range slices.Sorted(maps.Keys(here.ports)) {
			p := here.ports[port]
			if _, there := to.services[name].ports[port]; !there || p.protocol != "http" && p.protocol != "http2" {
				continue
			}
			if tried++; tried > maxCandidates {
				return "", nil
			}
			there, err := ready(ctx, to, name)
			if err != nil || !there {
				if err != nil {
					return "", err
				}
				break
			}
			near, err := ready(ctx, from, name)
			if err != nil {
				return "", err
			}
			if near {
				break
			}
			namespace, service, _ := strings.Cut(name, "/")
			return fmt.Sprintf("http://%s.%s.svc.%s:%d/", service, namespace, defaultTrust, p.number), nil
		}
	}
	return "", nil
}

// ready reports whether a Service has ready endpoints in its own cluster.
func ready(ctx context.Context, f *Facts, name string) (bool, error) {
	namespace, service, _ := strings.Cut(name, "/")
	raw, err := f.API.Discovery().RESTClient().Get().AbsPath("/apis/discovery.k8s.io/v1/namespaces", url.PathEscape(namespace), "endpointslices").
		Param("labelSelector", discoveryv1.LabelServiceName+"="+service).DoRaw(ctx)
	if err != nil {
		return false, err
	}
	var list discoveryv1.EndpointSliceList
	if err := unmarshal(raw, &list); err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(s discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready })
	}), nil
}

// proxy is the sidecar's container.
const proxy = "istio-proxy"

func sidecarOf(p *corev1.Pod) *corev1.Container {
	for _, all := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range all {
			if all[i].Name == proxy {
				return &all[i]
			}
		}
	}
	return nil
}

// sidecarImage is the image of a sidecar of the cluster, which a Pod can pull there.
func sidecarImage(ctx context.Context, f *Facts) (string, error) {
	list, err := f.API.CoreV1().Pods("").List(ctx, metav1.ListOptions{Limit: 500, FieldSelector: "status.phase=Running",
		LabelSelector: "service.istio.io/canonical-name"})
	if err != nil {
		return "", err
	}
	for i := range list.Items {
		if c := sidecarOf(&list.Items[i]); c != nil {
			return c.Image, nil
		}
	}
	return "", errors.New("no Pod with a sidecar runs")
}

// pod is one that asks a URL until it is answered, and ends.
func (c *Call) pod(f *Facts, image, target string) *corev1.Pod {
	no, yes, user, deadline := false, true, int64(1338), int64(podTime/time.Second)
	labels := map[string]string{"app.kubernetes.io/part-of": "fairlead", "app.kubernetes.io/name": "clusters-check",
		"sidecar.istio.io/inject": "true"}
	if f.Revision != "" && f.Revision != "default" {
		delete(labels, "sidecar.istio.io/inject")
		labels["istio.io/rev"] = f.Revision
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "fairlead-clusters-check-", Namespace: c.Namespace, Labels: labels},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &deadline, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Containers: []corev1.Container{{
				Name: caller, Image: image, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				Command: []string{"pilot-agent", "wait", "--url=" + target, fmt.Sprint("--timeoutSeconds=", callSeconds),
					"--requestTimeoutMillis=5000"},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, RunAsNonRoot: &yes, RunAsUser: &user, ReadOnlyRootFilesystem: &yes,
					Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
}

var errInterrupted = errors.New("the check was interrupted")

// errNotInjected is why a call would show nothing of the mesh.
var errNotInjected = errors.New("it gets no sidecar")

// remedyOfCall says what to do about a call that failed.
func remedyOfCall(err error) string {
	switch {
	case errors.Is(err, errNotInjected):
		return "see with `fairlead check-inject` why the injector leaves the namespace out, or name another with --call-namespace"
	case apierrors.IsForbidden(err):
		return "run the check as a user who may make and remove Pods there, or without --call"
	}
	return "see with `fairlead proxy-config endpoints` what a sidecar there knows of the Service, and the rows above"
}

// run makes the Pod, waits for its end and removes it. It returns what the Pod was answered.
func (c *Call) run(ctx context.Context, f *Facts, image, target string) (answer string, err error) {
	pods := f.API.CoreV1().Pods(c.Namespace)
	if ctx.Err() != nil {
		return "", errInterrupted
	}
	// An interruption must not hide the name of a Pod that has been made.
	making, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	p, err := pods.Create(making, c.pod(f, image, target), metav1.CreateOptions{FieldManager: "fairlead"})
	cancel()
	if err != nil {
		return "", err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
		defer cancel()
		now := int64(0)
		gone := pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.UID}})
		if gone != nil && !apierrors.IsNotFound(gone) {
			err = errors.Join(err, fmt.Errorf("the Pod could not be removed (%w): kubectl --context %s delete pod -n %s %s", gone, f.Context,
				c.Namespace, p.Name))
		}
	}()
	if sidecarOf(p) == nil {
		return "", errNotInjected
	}
	var end *corev1.ContainerStateTerminated
	var state string
	failed := wait.PollUntilContextTimeout(ctx, pollTime, podTime, false, func(ctx context.Context) (bool, error) {
		now, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		state = stateOf(now)
		for i := range now.Status.ContainerStatuses {
			if s := &now.Status.ContainerStatuses[i]; s.Name == caller {
				end = s.State.Terminated
			}
		}
		return end != nil || now.Status.Phase == corev1.PodFailed, nil
	})
	switch {
	case ctx.Err() != nil:
		return "", errInterrupted
	case failed != nil && !wait.Interrupted(failed):
		return "", failed
	case end == nil:
		return "", fmt.Errorf("the Pod has not called within %s: %s", podTime, state)
	case end.ExitCode == 0:
		return "status 200", nil
	}
	said := strings.ToValidUTF8(strings.TrimSpace(end.Message), "")
	if status := answered.FindStringSubmatch(said); status != nil {
		return "status " + status[1], nil
	}
	if len(said) > maxSaid {
		said = "…" + strings.ToValidUTF8(said[len(said)-maxSaid:], "")
	}
	return "", fmt.Errorf("no answer: %s", cmp.Or(said, fmt.Sprint("exit code ", end.ExitCode)))
}

// answered finds an answer of the application in the last words of pilot-agent, Istio's or ours, which waits for 200.
// What is 500 or more may be a proxy's.
var answered = regexp.MustCompile(`(?:HTTP status code|proxy is not ready:) (4\d\d)`)

// stateOf says what a Pod waits for.
func stateOf(p *corev1.Pod) string {
	for _, all := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range all {
			if w := all[i].State.Waiting; w != nil {
				return fmt.Sprintf("container %s: %s %s", all[i].Name, w.Reason, w.Message)
			}
		}
	}
	return "phase " + string(p.Status.Phase)
}
