package sim

import (
	"net/http"
	"slices"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// What a server can have besides its disk and its addresses: backups, the rescue system, a
// medium to boot from, a console, protection.

// isos are media that servers can boot from at the provider; hosts don't.
var isos = []schema.ISO{
	{
		ID: 8637, Name: "debian-12.11.0-amd64-netinst.iso", Description: "Debian 12.11 (amd64/netinstall)",
		Type: "public", Architecture: new("x86"),
	},
	{
		ID: 8638, Name: "debian-13.0.0-amd64-netinst.iso", Description: "Debian 13.0 (amd64/netinstall)",
		Type: "public", Architecture: new("x86"),
	},
}

func (s *Sim) isos() *kind[schema.ISO] {
	return &kind[schema.ISO]{
		sim: s, one: "iso", many: "isos", fixed: isos,
		show: func(i *schema.ISO) item { return item{id: i.ID, name: i.Name, body: i} },
	}
}

func (s *Sim) attachISO(r *http.Request, srv *server) (any, error) {
	var req struct {
		ISO schema.IDOrName `json:"iso"`
	}
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(isos, func(i schema.ISO) bool {
		return i.Name == req.ISO.Name || number(i.ID) == idOrName(req.ISO)
	})
	if i < 0 {
		return nil, invalid("iso not found", "iso")
	}
	srv.ISO = &isos[i]
	return s.did("attach_iso", nil, serverRef(srv.ID)), nil
}

func (s *Sim) detachISO(_ *http.Request, srv *server) (any, error) {
	srv.ISO = nil
	return s.did("detach_iso", nil, serverRef(srv.ID)), nil
}

// Backups cost a fifth of the server, which has room for seven (the specification,
// enable_backup).
const (
	backupShare = 0.2
	backupSlots = 7
)

// bill updates a server's cost in the ledger.
func (s *Sim) bill(srv *server) {
	m, ok := findMachine(srv.ServerType.Name)
	if !ok {
		return
	}
	monthly := m.monthly
	if srv.BackupWindow != nil {
		monthly *= 1 + backupShare
	}
	s.st.reprice("server", srv.ID, m.name, monthly)
}

func (s *Sim) enableBackup(_ *http.Request, srv *server) (any, error) {
	srv.BackupWindow = new("22-02") // which one is the provider's choice
	s.bill(srv)
	return s.did("enable_backup", nil, serverRef(srv.ID)), nil
}

func (s *Sim) disableBackup(_ *http.Request, srv *server) (any, error) {
	srv.BackupWindow = nil
	s.bill(srv)
	s.dropBackups(srv.ID, 0)
	return s.did("disable_backup", nil, serverRef(srv.ID)), nil
}

// dropBackups deletes a server's backups but the newest keep.
func (s *Sim) dropBackups(server int64, keep int) {
	var ids []int64
	for id, i := range s.st.Snapshots {
		if i.BoundTo != nil && *i.BoundTo == server {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids[:max(0, len(ids)-keep)] {
		s.dropSnapshot(id)
	}
}

// enableRescue has the server's next boot end it, as the provider's first boot into the
// rescue system does. Which system boots is the disk's all the same.
func (s *Sim) enableRescue(r *http.Request, srv *server) (any, error) {
	var req struct {
		Type    string  `json:"type"`
		SSHKeys []int64 `json:"ssh_keys"`
	}
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if req.Type != "" && req.Type != "linux64" {
		return nil, invalid("type must be linux64", "type")
	}
	if len(req.SSHKeys) > 0 {
		return nil, errNoSSHKeys
	}
	srv.RescueEnabled = true
	body := s.did("enable_rescue", nil, serverRef(srv.ID))
	body["root_password"] = rootPassword(s.st.id())
	return body, nil
}

func (s *Sim) disableRescue(_ *http.Request, srv *server) (any, error) {
	srv.RescueEnabled = false
	return s.did("disable_rescue", nil, serverRef(srv.ID)), nil
}

func (s *Sim) resetPassword(_ *http.Request, srv *server) (any, error) {
	if srv.Status != "running" {
		return nil, refused("server_not_running", "the action requires a running server")
	}
	body := s.did("reset_server_password", nil, serverRef(srv.ID))
	body["root_password"] = rootPassword(s.st.id())
	return body, nil
}

func (s *Sim) requestConsole(_ *http.Request, srv *server) (any, error) {
	body := s.did("request_console", nil, serverRef(srv.ID))
	body["wss_url"] = "wss://console.cloud.example/?server_id=" + number(srv.ID)
	body["password"] = rootPassword(s.st.id())
	return body, nil
}

// protectServer protects from deletion and rebuilding, which the provider only does together
// (the specification, change_protection).
func (s *Sim) protectServer(r *http.Request, srv *server) (any, error) {
	var req schema.ServerActionChangeProtectionRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	p := srv.Protection
	replace(&p.Delete, req.Delete)
	replace(&p.Rebuild, req.Rebuild)
	if p.Delete != p.Rebuild {
		return nil, invalid("delete and rebuild need to have the same value", "delete", "rebuild")
	}
	srv.Protection = p
	return s.did("change_protection", nil, serverRef(srv.ID)), nil
}
