package whole

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

// injectedContainers are those that injection puts into a Pod and that must run, or have ended well.
var injectedContainers = []string{"istio-init", "istio-validation", proxyName}

// stuck are the reasons of kubelet for a container that does not run, and does not without a change.
var stuck = []string{"CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
	"CreateContainerError", "CreateContainerConfigError", "RunContainerError"}

// checkSidecars finds sidecars that do not run, and workloads whose Pods with sidecars cannot be made.
func checkSidecars(r *run) {
	for _, w := range r.workloads {
		switch {
		case w.refused != "" && r.inMesh(w):
			remedy := "let the namespace allow what it names; sidecars need fewer rights with the CNI plugin (components.cni.enabled)"
			if strings.Contains(w.refused, "failed calling webhook") {
				remedy = "start what serves the webhook that it names; sidecars are injected by Deployment injector of the mesh's namespace"
			}
			r.report(w.Object, finding.PodsNotMade, "status.conditions", nil, "Pods are refused: "+w.refused, remedy)
		case w.status != nil:
			r.checkContainers(w)
		}
	}
}

func (r *run) checkContainers(w *workload) {
	for _, list := range []struct {
		field    string
		statuses []corev1.ContainerStatus
	}{{"status.initContainerStatuses", w.status.InitContainerStatuses}, {"status.containerStatuses", w.status.ContainerStatuses}} {
		for i := range list.statuses {
			s := &list.statuses[i]
			waiting := s.State.Waiting
			if !slices.Contains(injectedContainers, s.Name) || waiting == nil || !slices.Contains(stuck, waiting.Reason) {
				continue
			}
			text := "container " + s.Name + " does not run: " + waiting.Reason
			if waiting.Message != "" {
				text += ": " + waiting.Message
			}
			remedy := fmt.Sprintf("`kubectl describe pod -n %s %s` says more", w.Key.Namespace, w.Key.Name)
			if last := s.LastTerminationState.Terminated; last != nil {
				text += fmt.Sprintf("; it ended with exit code %d (%s)", last.ExitCode, last.Reason)
				remedy = fmt.Sprintf("`kubectl logs -n %s %s -c %s --previous` says why", w.Key.Namespace, w.Key.Name, s.Name)
			}
			r.report(w.Object, finding.SidecarNotRunning, fmt.Sprintf("%s[%d]", list.field, i), nil, text, remedy)
		}
	}
}
