package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/local/meshfile"
	"fairlead.dev/services/installer/internal/objectfile"
)

// deploymentsPeriod is how often watchDeployments looks at the mesh files.
const deploymentsPeriod = time.Second

// watchDeployments prints what a saved file says of a Deployment and what is not followed: Deployments are run as the
// files said at the start. unread tells of those that are new. It also prints which objects of the files are
// overridden, at the start and after each save.
func (n *Node) watchDeployments(ctx context.Context) error {
	seen := fileStamps(n.cfg.ConfigPaths)
	first, err := deployments(n.cfg.ConfigPaths)
	var printed, overridden []string
	saved := true
	for n.wait(ctx, deploymentsPeriod) {
		if saved { // at the last look, so that config-watcher has read it
			if lines, err := n.overridden(ctx); err != nil {
				n.cfg.Log.Debug("what is overridden cannot be read", "error", err)
			} else {
				n.printNew(overridden, lines)
				overridden, saved = lines, false
			}
		}
		stamps := fileStamps(n.cfg.ConfigPaths)
		if stamps == seen {
			continue
		}
		seen, saved = stamps, true
		now, loadErr := deployments(n.cfg.ConfigPaths)
		var lines []string
		switch {
		case errors.Is(loadErr, fs.ErrNotExist):
			lines = []string{fmt.Sprintf("%v; it is named with -f: put it back, or end `fairlead up` and name another", loadErr)}
		case loadErr != nil || err != nil: // config-watcher says what it refuses
			continue
		default:
			lines = notFollowed(first, now)
		}
		n.printNew(printed, lines)
		printed = lines
	}
	return nil
}

// printNew prints the warnings that were not printed before.
func (n *Node) printNew(before, now []string) {
	for _, line := range now {
		if !slices.Contains(before, line) {
			n.cfg.Console.Line("warning: " + line)
		}
	}
}

// overridden lists the objects of files that another file or source overrides.
func (n *Node) overridden(ctx context.Context) (lines []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := n.configAPI.Status(ctx, &configv1.StatusRequest{})
	if err != nil {
		return nil, err
	}
	for _, f := range res.GetFindings() {
		if f.GetType() == configv1.FindingType_FINDING_TYPE_OVERRIDDEN && f.GetLocation() != "" {
			lines = append(lines, fmt.Sprintf("%s: %s has no effect: %s", f.GetLocation(), f.GetObject(), f.GetMessage()))
		}
	}
	return lines, nil
}

// notFollowed tells what differs between the Deployments of the start and those of now.
func notFollowed(first, now map[string]appsv1.DeploymentSpec) (lines []string) {
	const remedy = "Deployments are read at the start; end `fairlead up` and start it again"
	for _, name := range slices.Sorted(maps.Keys(first)) {
		was := first[name]
		is, there := now[name]
		var changed []string
		if !equality.Semantic.DeepEqual(was.Replicas, is.Replicas) {
			changed = append(changed, "spec.replicas")
		}
		if !equality.Semantic.DeepEqual(was.Template, is.Template) {
			changed = append(changed, "spec.template")
		}
		switch {
		case !there:
			lines = append(lines, fmt.Sprintf("Deployment %s is gone from the files, and its Pods go on: %s", name, remedy))
		case len(changed) > 0:
			lines = append(lines, fmt.Sprintf("Deployment %s: a change of %s is not followed: %s", name, strings.Join(changed, " and "), remedy))
		}
	}
	return lines
}

// deployments reads the Deployments of the mesh files by "namespace/name".
func deployments(paths []string) (map[string]appsv1.DeploymentSpec, error) {
	m, err := meshfile.Load(paths)
	if err != nil {
		return nil, err
	}
	list := map[string]appsv1.DeploymentSpec{}
	for _, d := range m.Deployments {
		list[d.Namespace+"/"+d.Name] = d.Spec
	}
	return list, nil
}

// fileStamps changes whenever a mesh file is saved, comes or goes.
func fileStamps(paths []string) string {
	files, err := objectfile.List(paths)
	stamps := fmt.Sprint(err)
	for _, name := range files {
		if info, err := os.Stat(name); err == nil {
			stamps += fmt.Sprintln(name, info.Size(), info.ModTime().UnixNano())
		}
	}
	return stamps
}
