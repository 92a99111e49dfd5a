package ssh
