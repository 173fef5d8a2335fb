package app

import (
	"cmp"
	"context"
	"strings"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/proto/fairlead/cabackup"
	"fairlead.dev/services/ca/internal/backup"
	"fairlead.dev/services/ca/internal/kube"
)

// Backup makes the archive of the ca that runs with these options, on its machine or in its Pod.
func Backup(ctx context.Context, o *Options) (*cabackup.Archive, error) {
	return backUp(ctx, o, kube.InCluster)
}

func backUp(ctx context.Context, o *Options, in connect) (*cabackup.Archive, error) {
	var errs service.FlagErrors
	common := o.Options
	common.AdminIssuer = cmp.Or(o.AdminIssuer, o.Issuer) // as at the start
	trustDomain := common.Check(&errs)
	errs.Required("ca-dir", o.Dir)
	o.checkReplicas(&errs)
	if err := errs.Err(); err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	s := backup.Sources{
		Dir: o.Dir, TrustDomain: trustDomain.Name(), SignerFile: o.SignerFile, ExtraRootsFile: o.ExtraRootsFile, Now: time.Now(),
	}
	var cluster *kube.Cluster
	if o.Kubernetes {
		var err error
		if cluster, err = in(); err != nil {
			return nil, err
		}
		s.API = cluster.API
	}
	s.Record = o.openRecord(cluster, clock.Real())
	s.RecordIn.Namespace, s.RecordIn.Name, _ = strings.Cut(o.StateSecret, "/")
	return backup.Collect(ctx, s)
}
