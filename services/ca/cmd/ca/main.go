// Command ca is Fairlead's certificate authority: it authenticates workloads and issues their certificates.
package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/services/ca/internal/app"
	"fairlead.dev/services/ca/internal/store"
)

func main() { service.Main(command()) }

func command() *cobra.Command {
	cmd := service.Command(&cobra.Command{
		Use:   "ca --ca-dir DIR --jwks-file FILE --issuer ISSUER",
		Short: "Issue workload certificates",
		Long: "ca authenticates workloads by token or certificate and issues X.509-SVIDs through Istio's CreateCertificate API.\n\nExit " +
			"codes: 0 stopped when asked to, 1 failed (the message says the remedy), 2 wrong flags.",
	}, &app.Options{}, app.Open)
	cmd.AddCommand(rootCert(), backupCommand(), restoreCommand())
	return cmd
}

// rootCert prints the public root, for example to make the ConfigMap istio-ca-root-cert from it.
func rootCert() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "root-cert --ca-dir DIR",
		Short: "Print the ca's public root certificate in PEM",
		Args:  service.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return process.WithExitCode(fmt.Errorf("--ca-dir is required"), process.ExitUsage)
			}
			text, err := store.ReadCertificate(dir)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "ca-dir", "", "directory of the root (required)")
	return cmd
}
