package inject

import "k8s.io/apimachinery/pkg/util/version"

// nativeSince is the first minor version of Kubernetes 1 in which native sidecars are stable.
const nativeSince = 33

// RunsNativeSidecars reports whether a kubelet of a version, such as "v1.34.1", runs native sidecars by itself. A
// cluster does if all of its kubelets do.
func RunsNativeSidecars(kubelet string) bool {
	v, err := version.ParseGeneric(kubelet)
	return err == nil && (v.Major() > 1 || v.Minor() >= nativeSince)
}
